"""The entries of COCO's annotation files, as far as anything reads them.

Source of the format: https://cocodataset.org/#format-data, and https://www.lvisdataset.org/dataset
for what LVIS adds. What is large or seldom asked for stays a slice of the file until then.
"""

import enum
from collections.abc import Sequence
from typing import Annotated, Generic, TypeVar

import msgspec

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
SegmentId = Annotated[int, msgspec.Meta(ge=0, le=2**24 - 1)]
Id = Int64 | str

NOTHING = msgspec.Raw(b"")
_NULL = msgspec.Raw(b"null")

AnyId = TypeVar("AnyId")  # text too, where it is accepted
NumberId = TypeVar("NumberId")


class Kind(enum.Enum):
    """What an annotation file holds, in the order in which a split's files are joined."""

    INSTANCES = "instances"
    KEYPOINTS = "keypoints"
    CAPTIONS = "captions"
    PANOPTIC = "panoptic"

    @property
    def has_objects(self) -> bool:
        """Whether its annotations are objects with boxes."""
        return self in (Kind.INSTANCES, Kind.KEYPOINTS)


def kind_of(keys: Sequence[str]) -> Kind | None:
    """Return what an annotation with these keys is, or None.

    >>> kind_of(["id", "image_id", "caption"])
    <Kind.CAPTIONS: 'captions'>
    """
    if "segments_info" in keys:
        return Kind.PANOPTIC
    if "category_id" in keys or "bbox" in keys:
        return Kind.INSTANCES
    return Kind.CAPTIONS if "caption" in keys else None


class CocoImage(msgspec.Struct, Generic[AnyId, NumberId], gc=False, kw_only=True):
    """One entry of `images`; sizes in pixels, `file_name` as `blob_name` gives it.

    LVIS gives no `file_name`, but a `coco_url`, and lists of category ids.
    """

    id: AnyId
    file_name: str | msgspec.UnsetType = msgspec.UNSET
    width: PositiveInt
    height: PositiveInt
    license: msgspec.Raw = NOTHING
    coco_url: msgspec.Raw = NOTHING
    neg_category_ids: list[NumberId] | None = None
    not_exhaustive_category_ids: list[NumberId] | None = None

    @property
    def name(self) -> str:
        """The file's name, once it is known to be there."""
        assert isinstance(self.file_name, str)
        return self.file_name


class CocoCategory(msgspec.Struct, Generic[NumberId], gc=False, kw_only=True):
    """One entry of `categories`."""

    id: NumberId
    name: str
    keypoints: list[str] | None = None
    isthing: int | bool | msgspec.UnsetType = msgspec.UNSET


class CocoInstance(msgspec.Struct, Generic[AnyId, NumberId], gc=False, kw_only=True):
    """What is read of an object's entry of `annotations`; the rest is skipped unparsed."""

    id: AnyId
    image_id: AnyId
    category_id: NumberId
    bbox: msgspec.Raw = _NULL
    area: float | None = None
    iscrowd: int | bool = 0
    keypoints: msgspec.Raw = NOTHING


class CocoOutlined(CocoInstance[AnyId, NumberId], Generic[AnyId, NumberId], gc=False, kw_only=True):
    """An object's entry of `annotations` with its segmentation."""

    segmentation: msgspec.Raw = NOTHING


class CocoCaption(msgspec.Struct, Generic[AnyId, NumberId], gc=False, kw_only=True):
    """One entry of `annotations` of a captions file, which has nothing of other kinds."""

    id: AnyId
    image_id: AnyId
    caption: str
    category_id: msgspec.Raw = NOTHING
    segments_info: msgspec.Raw = NOTHING


class CocoPanoptic(msgspec.Struct, Generic[AnyId, NumberId], gc=False, kw_only=True):
    """One entry of `annotations` of a panoptic file: an image's."""

    image_id: AnyId
    file_name: str
    segments_info: msgspec.Raw

    @property
    def id(self) -> AnyId:
        """The image's id, since the entry has none of its own."""
        return self.image_id


class CocoSegment(msgspec.Struct, Generic[NumberId], gc=False, kw_only=True):
    """One entry of `segments_info`."""

    id: SegmentId
    category_id: NumberId
    bbox: msgspec.Raw = _NULL
    area: float | None = None
    iscrowd: int | bool = 0


CocoAnnotation = CocoInstance | CocoCaption | CocoPanoptic
