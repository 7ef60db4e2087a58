"""What a report says, before it is a page: plain values, texts not yet escaped."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.faults import Rejected
from schemas.statistics import Statistics


@dataclass(frozen=True)
class Outline:
    """Something drawn on a picture, with its class.

    Attributes:
        label: id of its class; None where it has none.
        text: what it is called; empty where nobody knows.
        box: left, top, width, height as parts of the picture's width and height; None for none.
        keypoints: x and y of each, likewise.
        has_mask: whether its mask is tinted in the picture, in the class's color.
    """

    label: int | None
    text: str
    box: tuple[float, float, float, float] | None = None
    keypoints: tuple[tuple[float, float], ...] = ()
    has_mask: bool = False


@dataclass(frozen=True)
class ShownPicture:
    """A record's picture, scaled down.

    Attributes:
        split: of the record.
        key: of the record.
        file: its shard's.
        number: of the record in the shard, from 0.
        name: what the picture is where a record has several, such as `image_b`; else empty.
        jpeg: the picture, pixels as stored in the record, without metadata.
        size_px: width and height of that.
        stored_size_px: width and height in the record.
        labels: ids of the record's classes, sorted.
        for_classes: labels of the classes that it was drawn for.
        for_split: whether it was drawn for its split.
        outlines: what is drawn on it.
        captions: values worth reading, such as a caption or text, a line each.
    """

    split: str
    key: str
    file: str
    number: int
    name: str
    jpeg: bytes
    size_px: tuple[int, int]
    stored_size_px: tuple[int, int]
    labels: tuple[int, ...] = ()
    for_classes: tuple[int, ...] = ()
    for_split: bool = True
    outlines: tuple[Outline, ...] = ()
    captions: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShardFacts:
    """A shard, in a line.

    Attributes:
        file: its name.
        records: in it.
        bytes: of the file.
        runs: of neighbours of the same leading class; 0 where records have none.
        expected_runs: of a uniform shuffle of the same records.
    """

    file: str
    records: int
    bytes: int
    runs: int = 0
    expected_runs: float = 0.0


@dataclass(frozen=True)
class SplitReport:
    """A split.

    Attributes:
        name: of the split; empty for files of unknown origin.
        sums: how many samples were listed, planned, rejected, …, in the order of reading; as in the
            manifest. Empty for files of unknown origin.
        annotations: likewise, of annotations.
        rejected: samples rejected, by reason's code.
        dropped: annotations dropped, by reason's code.
        repairs: what was mended, with counts.
        traits: what is unusual about its images, with counts, such as `gps`.
        licenses: records by the name of their image's license.
        statistics: of its records.
        shards: in their order.
    """

    name: str
    statistics: Statistics
    shards: Sequence[ShardFacts]
    sums: Sequence[tuple[str, int]] = ()
    annotations: Sequence[tuple[str, int]] = ()
    rejected: Sequence[tuple[str, int]] = ()
    dropped: Sequence[tuple[str, int]] = ()
    repairs: Sequence[tuple[str, int]] = ()
    traits: Sequence[tuple[str, int]] = ()
    licenses: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Report:
    """All of it.

    Attributes:
        title: the data set's name, or the file's.
        layout: of the records; empty for files of unknown origin.
        splits: in the order of the manifest.
        class_names: by label id.
        pictures: those of splits before those of classes.
        rejects: examples of what was rejected, the first of each reason.
        options: by name, of the plan.
        features: key, kind, how many values, and meaning.
        sources: where samples came from, a line each.
        versions: of the programs, by name.
        notes: what else is to be said, a line each.
    """

    title: str
    layout: str
    splits: Sequence[SplitReport]
    class_names: dict[int, str] = field(default_factory=dict)
    pictures: Sequence[ShownPicture] = ()
    rejects: Sequence[Rejected] = ()
    options: Sequence[tuple[str, str]] = ()
    features: Sequence[tuple[str, str, str, str]] = ()
    sources: Sequence[str] = ()
    versions: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
