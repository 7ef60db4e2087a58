"""Layouts: which features an Example holds, under which keys, and how they follow from a sample.

A layout is a frozen, picklable value with the methods of `Layout`; one of the user's own is passed
to a pipeline's `build` like those here. It sees one sample with its images, and no storage. Those
of annotated pictures have `beam_tfrec.schemas.layouts.pictures.PictureLayout` as their base.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

from beam_tfrec.schemas.annotations.coco_join import BadAnnotation
from beam_tfrec.schemas.example import FeatureListValues, FeatureValues
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.fields import EncodedImage
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Sample

PIXEL_DTYPES = {"uint8": 1, "uint16": 2, "float16": 2, "float32": 4, "float64": 8}
"""What plain pixels can be, with bytes a number.

As `tf.image.convert_image_dtype` makes them: floats are in [0, 1].
"""

Values = Mapping[str, Sequence]
"""The values of an Example's features by key, in lists, single ones too."""

Labels = Mapping[int | str, Label]
"""Labels by category id of the annotation files, and by name for sources without such ids."""


def labels_by_category(labels: Iterable[Label]) -> Labels:
    """Return labels by the category id that annotation files have for them, and by name.

    >>> labels_by_category([Label(1, "person"), Label(2, "toothbrush", category_id=90)])[90].id
    2
    >>> labels_by_category([Label(7, "2", category_id="1"), Label(8, "1", category_id="2")])["1"].id
    7
    """
    labels = list(labels)
    by_name: dict[int | str, Label] = {label.name: label for label in labels}
    return by_name | {label.annotated_id: label for label in labels}  # an id may be like a name


class Built(NamedTuple):
    """The values of one Example.

    Attributes:
        features: per key its kind and values, for `encode_example_parts`.
        dropped: annotations left out, with their reasons.
        repairs: names of what was mended, one entry a time, such as `box_clipped`.
        labels: class labels of the record, for the index.
        feature_lists: of a SequenceExample, whose context the features are; None for an Example.
        license_id: of its image, as the annotation files number licenses; None where unknown.
    """

    features: FeatureValues
    dropped: list[BadAnnotation]
    repairs: list[str]
    labels: list[int]
    feature_lists: FeatureListValues | None = None
    license_id: int | None = None


class Unfit(NamedTuple):
    """Why a sample cannot become an Example.

    Attributes:
        code: a SAMPLE code.
        detail: one short line.
        place: of the blob that it is about, among the sample's.
    """

    code: str
    detail: str
    place: int = 0


class AttributeValues:
    """Gives attributes of a picture, or of each of its objects, as values; text is UTF-8.

    Attributes:
        features: whose values it gives.
    """

    def __init__(self, paths: Mapping[Feature, str], *, of_objects: bool = False) -> None:
        """Take the path of each feature's attribute, such as `image.info.height_px`."""
        self.features = tuple(paths)
        self._getters = {feature.key: attrgetter(path) for feature, path in paths.items()}
        self._texts = [feature.key for feature in paths if feature.content is Content.TEXT]
        self._of_objects = of_objects

    def __call__(self, picture: Any) -> dict[str, list[Any]]:
        """Return the values of every feature."""
        found = picture.objects if self._of_objects else [picture]
        values = {key: list(map(get, found)) for key, get in self._getters.items()}
        for key in self._texts:
            values[key] = [text.encode() for text in values[key]]
        return values


class Layout:
    """What the transforms ask of a layout; implementations are frozen and picklable.

    A subclass gives `spec`, `record_bytes` and `build`, and whatever differs from the
    defaults here.

    Attributes:
        per_annotation: whether an Example holds one annotation instead of one image.
        int64_ids: whether records hold ids as numbers, so that annotation files must have such.
        reads_images: whether blobs are image files, which are checked; others are taken as bytes.
        sample_noun: word for a sample in messages.
        first_label: number of the first class; others follow without gaps. None for the sources'
            own ids.
    """

    per_annotation: ClassVar[bool] = False
    int64_ids: ClassVar[bool] = False
    reads_images: ClassVar[bool] = True
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
        """The number from which labels are counted; None for the sources' own ids."""
        return self.first_label

    @property
    def reads_segmentations(self) -> bool:
        """Whether samples must carry segmentations, which makes them ten times as large."""
        return False

    @property
    def has_payloads(self) -> bool:
        """Whether samples may have payloads, which a run in process keeps on disk."""
        return self.reads_segmentations

    @property
    def pixels_dtype(self) -> str:
        """Type of `EncodedImage.pixels`, one of `PIXEL_DTYPES`; empty for encoded images."""
        return ""

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes, for the plan."""
        return {}

    def resolved(self, found: Sequence[str]) -> Self:
        """Return the layout for what the sources hold.

        It is called once the plan is made, and before `spec` or `build` are used.

        Args:
            found: names of what is there, as the reader gives them, such as `captions`.

        Raises:
            ValueError: when that does not suit the layout, with the remedy.
        """
        return self

    def record_bytes(self, sample: Sample) -> int:
        """Return the estimated size of the sample's record, before its images are read.

        The estimate fixes the number of shards, hence bytes: changing it is a breaking change.
        """
        raise NotImplementedError

    def build(
        self, sample: Sample, images: Sequence[EncodedImage], labels: Labels
    ) -> Built | Unfit:
        """Return the Example's values from the sample and its images, in its blobs' order."""
        raise NotImplementedError

    def typed(self, values: Values) -> FeatureValues:
        """Return the values of all features with their kinds, in the encoder's order.

        Raises:
            ValueError: when some would be lost, or no reader of the spec could parse them.
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
        """Keys, kinds and whether they are single; kept, as they cost as much as a record."""
        return [(of.key, of.kind, not of.repeated) for of in self.spec.sorted_features]
