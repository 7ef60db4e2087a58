"""Report of a data set: its counts, charts and sample pictures on one self-contained HTML page.

This module defines the values of the page. `gather` collects them, `page` renders them.
"""

import colorsys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.manifest import SplitSummary

Histogram = Mapping[int, int]
"""Number of records by value."""

MAX_PICTURES = 72
"""Largest number of records that a report shows."""

_GOLDEN_PART = 0.6180339887  # of the hue circle, so that neighbouring labels get different hues
_LIGHTNESS = (0.45, 0.35, 0.55)
_SATURATION = 0.75


@dataclass(frozen=True)
class Outline:
    """A box or keypoints on a picture.

    Attributes:
        label: id of the class, or None.
        text: name to show; may be empty.
        box: left, top, width, height as fractions of the picture's size.
        keypoints: x and y of each keypoint, as fractions of the picture's size.
    """

    label: int | None
    text: str
    box: tuple[float, float, float, float] | None = None
    keypoints: tuple[tuple[float, float], ...] = ()


class PickedRecord(NamedTuple):
    """A record to show.

    Attributes:
        split: split of its shard.
        file: name of the shard.
        number: number of the record in the shard, from 0.
        offset: byte offset of the frame in the shard.
        size: size of the frame in bytes.
        key: key of the record.
    """

    split: str
    file: str
    number: int
    offset: int
    size: int
    key: str


@dataclass(frozen=True)
class ShownPicture:
    """A record's picture, scaled down.

    Attributes:
        record: record of the picture.
        name: feature of the picture, such as `image_b`, if the record has several; else empty.
        jpeg: picture as a JPEG without metadata.
        size_px: width and height of the JPEG.
        stored_size_px: width and height in the record.
        mask: PNG of the same size with the coloured masks; empty for none.
        labels: ids of the record's classes, sorted.
        outlines: boxes and keypoints to draw.
        captions: texts of the record.
    """

    record: PickedRecord
    name: str
    jpeg: bytes
    size_px: tuple[int, int]
    stored_size_px: tuple[int, int]
    mask: bytes = b""
    labels: tuple[int, ...] = ()
    outlines: tuple[Outline, ...] = ()
    captions: tuple[str, ...] = ()


@dataclass(frozen=True)
class SplitReport:
    """A split.

    Attributes:
        name: name of the split; empty for files without a manifest.
        summary: summary in the manifest; only totals for files without a manifest.
        histograms: number of records by value, for each index column.
        class_records: number of records with a class, by label.
        class_objects: number of objects of a class, by label.
    """

    name: str
    summary: SplitSummary
    histograms: dict[str, Counter[int]] = field(default_factory=dict)
    class_records: Counter[int] = field(default_factory=Counter)
    class_objects: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True)
class Report:
    """The whole report.

    Attributes:
        title: name of the data set's folder, or of the file.
        layout: layout of the records; empty for files without a manifest.
        splits: splits, sorted by name.
        class_names: names of classes, by label.
        pictures: pictures of sample records.
        rejects: first reject of each code.
        options: options of the plan, by name.
        features: key, kind, number of values and meaning of each feature.
        sources: sources of the samples, a line each.
        versions: versions of programs, by name.
        notes: missing or damaged parts, a line each.
    """

    title: str
    layout: str
    splits: Sequence[SplitReport]
    class_names: Mapping[int, str] = field(default_factory=dict)
    pictures: Sequence[ShownPicture] = ()
    rejects: Sequence[Rejected] = ()
    options: Sequence[tuple[str, str]] = ()
    features: Sequence[tuple[str, str, str, str]] = ()
    sources: Sequence[str] = ()
    versions: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


def class_name(label: int | None, names: Mapping[int, str]) -> str:
    """Return the name of a class, or its number; empty without a class.

    >>> class_name(1, {1: "kite"}), class_name(2, {1: "kite"}), class_name(None, {})
    ('kite', 'class 2', '')
    """
    return "" if label is None else names.get(label) or f"class {label}"


def class_color(label: int | None) -> str:
    """Return the HTML color of a label, which is equal in all reports.

    >>> class_color(1), class_color(2), class_color(None)
    ('#163d9c', '#9be236', '#666666')
    """
    if label is None:
        return "#666666"
    hue = label * _GOLDEN_PART % 1
    levels = colorsys.hls_to_rgb(hue, _LIGHTNESS[label % len(_LIGHTNESS)], _SATURATION)
    return "#" + "".join(f"{round(255 * level):02x}" for level in levels)
