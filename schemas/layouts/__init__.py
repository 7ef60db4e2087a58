"""Layouts: the features of an Example, their keys, and how a sample's values fill them.

A layout is a frozen, picklable value with the methods of `Layout`. It gets one sample with its
images and accesses no storage. A user's own layout is passed to a pipeline's `build`; layouts of
annotated pictures extend `beam_tfrec.schemas.layouts.pictures.PictureLayout`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

from beam_tfrec.schemas.columns import ColumnFacts, found_of_columns
from beam_tfrec.schemas.example import FeatureListValues, FeatureValues
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.fields import BadAnnotation, EncodedImage
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Sample

PIXEL_DTYPES = {"uint8": 1, "uint16": 2, "float16": 2, "float32": 4, "float64": 8}
"""Types of plain pixels, with bytes per number.

Values are those of `tf.image.convert_image_dtype`: floats are in [0, 1].
"""

Values = Mapping[str, Sequence]
"""Values of an Example's features, by key. Single values are lists too."""

Labels = Mapping[int | str, Label]
"""Labels by category id of the annotation files, and by name."""


def labels_by_category(labels: Iterable[Label]) -> Labels:
    """Return labels by their category ids in annotation files, and by name.

    >>> labels_by_category([Label(1, "person"), Label(2, "toothbrush", category_id=90)])[90].id
    2
    >>> labels_by_category([Label(7, "2", category_id="1"), Label(8, "1", category_id="2")])["1"].id
    7
    """
    labels = list(labels)
    by_name: dict[int | str, Label] = {label.name: label for label in labels}
    return by_name | {label.annotated_id: label for label in labels}  # an id wins over a name


class Built(NamedTuple):
    """The values of one Example.

    Attributes:
        features: kind and values by key, for `encode_example_parts`.
        dropped: annotations left out, with their reasons.
        repairs: names of repairs such as `box_clipped`, one entry per repair.
        labels: class labels of the record, for the index.
        feature_lists: feature lists of a SequenceExample, with `features` as its context; None for
            an Example.
        license_id: license id of its image in the annotation files; None if unknown.
    """

    features: FeatureValues
    dropped: list[BadAnnotation]
    repairs: list[str]
    labels: list[int]
    feature_lists: FeatureListValues | None = None
    license_id: int | None = None


@dataclass(unsafe_hash=True)
class Unfit(Exception):
    """A sample cannot become an Example, and is rejected.

    Attributes:
        code: a code of `FAULTS` with the scope SAMPLE.
        detail: description, one short line.
        place: index of the blob at fault in `Sample.blobs`.
    """

    code: str
    detail: str
    place: int = 0


class AttributeValues:
    """Function that reads features' values from attributes of a picture or of its objects.

    Attributes:
        features: the features that it fills.
    """

    def __init__(self, paths: Mapping[Feature, str], *, of_objects: bool = False) -> None:
        """Store the attribute of each feature.

        Args:
            paths: path of the attribute by feature, such as `image.info.height_px`.
            of_objects: whether paths begin at each of the picture's objects.
        """
        self.features = tuple(paths)
        self._getters = {feature.key: attrgetter(path) for feature, path in paths.items()}
        self._texts = [feature.key for feature in paths if feature.content is Content.TEXT]
        self._of_objects = of_objects

    def __call__(self, picture: Any) -> dict[str, list[Any]]:
        """Return the values of every feature; text is encoded as UTF-8."""
        found = picture.objects if self._of_objects else [picture]
        values = {key: list(map(get, found)) for key, get in self._getters.items()}
        for key in self._texts:
            values[key] = [text.encode() for text in values[key]]
        return values


class Layout:
    """The interface of a layout. Subclasses are frozen and picklable.

    A subclass defines `spec`, `record_bytes` and `build`, and overrides defaults as needed.

    Attributes:
        per_annotation: whether an Example holds one annotation instead of one image.
        int64_ids: whether records hold ids as numbers; annotation files then need numeric ids.
        reads_images: whether blobs are image files to be checked; else they are plain bytes.
        copies_records: whether samples are finished records that are copied; `build` is not used.
        sample_noun: word for a sample in messages.
        first_label: number of the first class, with the others numbered after it without gaps.
            None for the sources' own ids.
    """

    per_annotation: ClassVar[bool] = False
    int64_ids: ClassVar[bool] = False
    reads_images: ClassVar[bool] = True
    copies_records: ClassVar[bool] = False
    sample_noun: ClassVar[str] = "image"
    first_label: int | None = None

    @property
    def name(self) -> str:
        """The layout's name in the manifest."""
        return self.spec.name

    @property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        raise NotImplementedError

    @property
    def first_label_id(self) -> int | None:
        """The number of the first class; None for the sources' own ids."""
        return self.first_label

    @property
    def reads_segmentations(self) -> bool:
        """Whether samples must carry segmentations, for masks or polygons that the user asked for.

        Samples are ten times as large with them.
        """
        return False

    @property
    def pixels_dtype(self) -> str:
        """Type of `EncodedImage.pixels`, one of `PIXEL_DTYPES`; empty if no pixels are needed."""
        return ""

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes, for the plan."""
        return {}

    def resolved(self, found: Sequence[str]) -> Self:
        """Return the layout completed with what the sources hold.

        It is called after planning, and before `spec` or `build` are used.

        Args:
            found: names of what the sources hold, from their reader, such as `captions`.

        Raises:
            ValueError: when the layout cannot hold it. The message says what to do.
        """
        return self

    def found_of(self, columns: Iterable[ColumnFacts], rows: int) -> list[str]:
        """Return what the columns of the sources hold, for `resolved`.

        Args:
            columns: facts about the columns.
            rows: number of rows in the sources.
        """
        return found_of_columns(columns, rows)

    def record_bytes(self, sample: Sample) -> int:
        """Return the estimated size of the sample's record, before its images are read.

        The estimate decides the number of shards, so changing it is a breaking change.
        """
        raise NotImplementedError

    def classes_of(self, sample: Sample) -> Collection[int | str]:
        """Return the classes of a sample, by id or name, to divide samples evenly into splits."""
        raise NotImplementedError

    def build(self, sample: Sample, images: Sequence[EncodedImage], labels: Labels) -> Built:
        """Return the Example's values.

        Args:
            sample: the sample.
            images: its images, in the order of its blobs.
            labels: labels by category id and by name.

        Raises:
            Unfit: there is no Example. Other exceptions reject the sample too.
        """
        raise NotImplementedError

    def examples(self, samples: Sequence[Sample]) -> list[bytes] | None:
        """Return the Examples of samples without images, or None to `build` them one by one.

        Raises:
            ValueError: when a value does not fit; `build` then finds the sample.
            OverflowError: likewise.
        """
        return None

    def typed(self, values: Values) -> FeatureValues:
        """Return the values of all features with their kinds.

        Raises:
            ValueError: when keys or numbers of values do not fit the spec.
        """
        if len(values) != len(self._kinds):
            differing = sorted({feature.key for feature in self.spec.features} ^ values.keys())
            raise ValueError(f"values and spec must have the same keys, differ in {differing}")
        for key, _, is_single in self._kinds:
            if is_single and len(values[key]) != 1:
                raise ValueError(f"{key} must be a list of one value, got {len(values[key])}")
        return {key: (kind, values[key]) for key, kind, _ in self._kinds}

    @cached_property
    def _kinds(self) -> list[tuple[str, Kind, bool]]:
        """Key, kind and whether it has one value, by feature. Cached: as costly as one record."""
        return [(of.key, of.kind, not of.repeated) for of in self.spec.sorted_features]
