"""One COCO annotation file: what kind it is, and a strict parser of its entries.

A file is held whole and decoded in one typed pass: twice its size in memory. A box stays a slice
of the file until its image is made. Segmentations are skipped unparsed unless they are asked for.
"""

import enum
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec

from schemas.annotations.file_names import blob_name, name_of_url
from schemas.annotations.json_sections import (
    first_keys,
    mend_numbers,
    parse_sections,
)
from schemas.faults import fault_line
from schemas.labels import License, check_labels, read_licenses

_ID = operator.attrgetter("id")

_AREA = operator.attrgetter("area")

_KEYPOINTS = operator.attrgetter("keypoints")


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


NOTHING = msgspec.Raw(b"")

_NULL = msgspec.Raw(b"null")

AnyId = TypeVar("AnyId")  # text too, where it is accepted

NumberId = TypeVar("NumberId")


class CocoInstance(msgspec.Struct, Generic[AnyId, NumberId], gc=False, kw_only=True):
    """What is read of an object's entry of `annotations`; the rest is skipped unparsed."""

    id: AnyId
    image_id: AnyId
    category_id: NumberId
    bbox: msgspec.Raw = _NULL
    area: float | None = None
    iscrowd: int | bool = 0
    keypoints: msgspec.Raw = NOTHING


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


_ENTRIES = {
    Kind.INSTANCES: CocoInstance,
    Kind.CAPTIONS: CocoCaption,
    Kind.PANOPTIC: CocoPanoptic,
}

_ID_FIELDS = ("id", "image_id", "category_id")

_FieldValue = int | float | str | None


@dataclass(frozen=True)
class CocoStrictness:
    """How a file's values are taken.

    Attributes:
        string_ids: accept ids that are strings.
        segmentations: keep segmentations.
        image_field: name of a field of images whose values are kept as text; empty for none.
    """

    string_ids: bool = False
    segmentations: bool = False
    image_field: str = ""


STRICT = CocoStrictness()


class Orphan(NamedTuple):
    """An annotation whose image no file lists.

    Attributes:
        where: its file.
        path: its place there, such as `$.annotations[5]`.
        annotation_id: its id.
        image_id: what it says of its image.
    """

    where: str
    path: str
    annotation_id: int | str
    image_id: int | str


CocoAnnotation = CocoInstance | CocoCaption | CocoPanoptic


class CocoFile:
    """A parsed annotation file of any kind.

    Attributes:
        where: its name, for messages.
        kind: what it holds.
        images: in the file's order, ids and names unique.
        categories: in the file's order; an id has one name. Empty for captions.
        annotations: in the file's order.
        num_ids: different ids of the annotations.
        licenses: that it names, by id.
        image_values: of the field of images that was asked for, in their order; empty where an
            image has none.
    """

    def __init__(self, data: bytes, where: str, strictness: CocoStrictness = STRICT) -> None:
        """Parse a file.

        Args:
            data: its bytes, UTF-8 with or without a BOM.
            where: the file's name, for messages.
            strictness: how its values are taken.

        Raises:
            RuntimeError: an `E-ANN-…` line when the file breaks a rule.
        """
        self.where = where
        self._strictness = strictness
        self.images: list[CocoImage] = []
        self.image_values: list[str] = []
        self.categories: list[CocoCategory] = []
        sections = parse_sections(data, where)
        images, annotations = sections.take("images"), sections.take("annotations")
        self.kind = self._kind_by_keys(annotations)
        categories = NOTHING if self.kind is Kind.CAPTIONS else sections.take("categories")
        self.images = self._decode(images, "images", CocoImage)
        if field := strictness.image_field:
            self.image_values = self._decode_field(images, field)
        if memoryview(categories):
            self.categories = self._decode(categories, "categories", CocoCategory)
        self.annotations: list[Any] = self._decode_annotations(annotations)
        ids = set(map(_ID, self.annotations))
        self.num_ids = len(ids)
        if not strictness.string_ids:
            self.refuse_text("images", "id")
            if not set(map(type, ids)) <= {int}:
                self.refuse_text("annotations", _ID_FIELDS[self.kind is Kind.PANOPTIC])
        self.licenses: list[License] = read_licenses(sections.find("licenses"))
        _check_images(self.images, where)
        check_labels([(category.id, category.name) for category in self.categories], where)

    def ids_and_images(self) -> Iterator[tuple[int | str, int | str]]:
        """Yield the id of every annotation and that of its image, in the file's order."""
        return ((annotation.id, annotation.image_id) for annotation in self.annotations)

    def by_image(self, image_ids: Iterable[int | str]) -> dict[int | str, list[Any]]:
        """Return the annotations of every image, in the file's order, without orphans."""
        grouped: dict[int | str, list[Any]] = {image_id: [] for image_id in image_ids}
        for annotation in self.annotations:
            of_image = grouped.get(annotation.image_id)
            if of_image is not None:
                of_image.append(annotation)
        return grouped

    def orphans(self, image_ids: Iterable[int | str]) -> list[Orphan]:
        """Return the annotations whose image is none of these.

        Raises:
            RuntimeError: `E-ANN-TYPE` where text was not accepted, which is no image's id then.
        """
        known = set(image_ids)
        found = [
            Orphan(self.where, f"$.annotations[{place}]", annotation_id, image_id)
            for place, (annotation_id, image_id) in enumerate(self.ids_and_images())
            if image_id not in known
        ]
        if found and not self._strictness.string_ids:
            self.refuse_text("annotations", "image_id")
        return found

    def path_of(self, annotation: CocoAnnotation) -> str:
        """Return where one of the annotations stands in the file, such as `$.annotations[5]`."""
        place = next(i for i, other in enumerate(self.annotations) if other is annotation)
        return f"$.annotations[{place}]"

    def refuse_text(self, section: str, field: str) -> None:
        """Refuse entries whose id is text.

        Raises:
            RuntimeError: `E-ANN-TYPE`.
        """
        entries: Sequence = self.images if section == "images" else self.annotations
        for place, value in enumerate(map(operator.attrgetter(field), entries)):
            if isinstance(value, str):
                what = f"$.{section}[{place}].{field} is the string {value!r}, not an int64"
                raise self.wrong_type(what, "correct it, or give --string_ids")

    def wrong_type(self, what: str, remedy: str = "correct the file") -> RuntimeError:
        """Return the fault of a value of the wrong type."""
        if "got `float`" in what and what.endswith(("id`", "ids[...]`")):
            remedy = "write ids as integers (3, not 3.0)"
        return RuntimeError(fault_line("E-ANN-TYPE", self.where, what, remedy))

    def _kind_by_keys(self, annotations: msgspec.Raw) -> Kind:
        """Return the kind by the first annotation; instances where there is none."""
        keys = first_keys(annotations)
        kind = kind_of(keys) if keys else Kind.INSTANCES
        if kind is None:
            what = f"section 'annotations' is of no known kind: its first has {', '.join(keys[:8])}"
            remedy = "give instances, person_keypoints, captions or panoptic files"
            raise RuntimeError(fault_line("E-ANN-SECTION", self.where, what, remedy))
        return kind

    def _decode_annotations(self, section: msgspec.Raw) -> list[Any]:
        entry: Any = _ENTRIES[self.kind]
        if self.kind is not Kind.INSTANCES:
            entries = self._decode(section, "annotations", entry)
            if self.kind is Kind.CAPTIONS:
                self._refuse_more_than_captions(entries, section)
            return entries
        if self._strictness.segmentations:
            entry = CocoOutlined
        entries = self._decode(section, "annotations", entry)
        if entry is CocoInstance and any(a is None or a < 0 for a in map(_AREA, entries)):
            entries = self._decode(section, "annotations", CocoOutlined)  # areas are found by them
        if operator.countOf(map(_KEYPOINTS, entries), NOTHING) < len(entries):
            self.kind = Kind.KEYPOINTS
        return entries

    def _decode(self, section: msgspec.Raw, name: str, entry: Any) -> Any:
        """Return a section's entries."""
        ids: tuple = (Int64,) if entry is CocoCategory else (Id, Int64)
        into: Any = list.__class_getitem__(entry[ids])
        try:
            return msgspec.json.decode(section, type=into)
        except msgspec.ValidationError as error:
            what, _, at = str(error).partition(" - at `$")  # no path: the section itself
            if at.endswith((".area`", ".width`", ".height`")):  # seldom, so files are not scanned
                mended = mend_numbers(section)
                if bytes(mended) != bytes(section):
                    return self._decode(mended, name, entry)
            if name == "annotations":
                self._refuse_mixture(section, at)
            raise self.wrong_type(f"{what} - at `$.{name}{at or '`'}") from None

    def _decode_field(self, images: msgspec.Raw, name: str) -> list[str]:
        """Return a field of all images as text.

        Raises:
            RuntimeError: `E-ANN-TYPE` when one is neither text nor a number.
        """
        entry = msgspec.defstruct("Entry", [("value", _FieldValue, None)], rename={"value": name})
        try:
            entries = msgspec.json.decode(images, type=list.__class_getitem__(entry))
        except msgspec.ValidationError as error:
            what, _, at = str(error).partition(" - at `$")
            remedy = "write text or a number, or split by another field"
            raise self.wrong_type(f"{what} - at `$.images{at or '`'}", remedy) from None
        return [_as_text(found.value) for found in entries]

    def _refuse_mixture(self, section: msgspec.Raw, at: str) -> None:
        """Refuse an entry of another kind than the first, which only looks like a wrong type."""
        place, bracket, _ = at.removeprefix("[").partition("]")
        if not bracket or not place.isdigit():
            return
        keys = _keys_at(section, int(place))
        if kind_of(keys) not in (None, self.kind):
            raise self._mixture(int(place), keys)

    def _refuse_more_than_captions(self, entries: list[CocoCaption], section: msgspec.Raw) -> None:
        for place, entry in enumerate(entries):
            if entry.category_id is not NOTHING or entry.segments_info is not NOTHING:
                raise self._mixture(place, _keys_at(section, place))

    def _mixture(self, place: int, keys: Sequence[str]) -> RuntimeError:
        what = f"section 'annotations' mixes kinds: the first are {self.kind.value},"
        what += f" $.annotations[{place}] has {', '.join(keys[:8])}"
        remedy = "give each kind in a file of its own"
        return RuntimeError(fault_line("E-ANN-SECTION", self.where, what, remedy))


def _as_text(value: str | float | None) -> str:
    """Return a field's value as text, equal for equal numbers.

    >>> _as_text("s7"), _as_text(7), _as_text(7.0), _as_text(0.5), _as_text(None)
    ('s7', '7', '7', '0.5', '')
    """
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return "" if value is None else str(value)


def _keys_at(section: msgspec.Raw, place: int) -> list[str]:
    entries = msgspec.json.decode(section, type=list[msgspec.Raw])
    return first_keys(msgspec.Raw(b"[%b]" % bytes(entries[place])))


PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


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


def _check_images(images: list[CocoImage], where: str) -> None:
    """Refuse names outside the root, and ids or names that stand twice; give names their form."""
    for place, image in enumerate(images):
        given = image.file_name
        if isinstance(given, msgspec.UnsetType):
            given = _name_by_url(image, place, where)
        try:
            image.file_name = blob_name(given)
        except ValueError as error:
            what = f"$.images[{place}] (id {image.id}): file_name {given!r} {error}"
            remedy = "give names relative to --images"
            raise RuntimeError(fault_line("E-ANN-PATH", where, what, remedy)) from None
    refuse_twins("id", [str(image.id) for image in images], where)
    refuse_twins("file_name", [image.name for image in images], where)


def _name_by_url(image: CocoImage, place: int, where: str) -> str:
    """Return the name of one of LVIS's images, which only has a URL."""
    try:
        return name_of_url(msgspec.json.decode(image.coco_url, type=str))
    except msgspec.DecodeError:
        what = f"Object missing required field `file_name` - at `$.images[{place}]`"
        raise RuntimeError(fault_line("E-ANN-TYPE", where, what, "correct the file")) from None


def refuse_twins(kind: str, values: list[str], where: str) -> None:
    """Refuse images when two have the same value.

    Raises:
        RuntimeError: `E-ANN-DUPLICATE`.
    """
    if len(set(values)) == len(values):
        return
    first: dict[str, int] = {}
    for place, value in enumerate(values):
        other = first.setdefault(value, place)
        if other != place:
            what = f"$.images[{other}] and $.images[{place}] have the same {kind} {value!r}"
            raise RuntimeError(fault_line("E-ANN-DUPLICATE", where, what, "remove one"))


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

SegmentId = Annotated[int, msgspec.Meta(ge=0, le=2**24 - 1)]

Id = Int64 | str


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


class CocoCategory(msgspec.Struct, Generic[NumberId], gc=False, kw_only=True):
    """One entry of `categories`."""

    id: NumberId
    name: str
    keypoints: list[str] | None = None
    isthing: int | bool | msgspec.UnsetType = msgspec.UNSET


class CocoOutlined(CocoInstance[AnyId, NumberId], Generic[AnyId, NumberId], gc=False, kw_only=True):
    """An object's entry of `annotations` with its segmentation."""

    segmentation: msgspec.Raw = NOTHING


class CocoSegment(msgspec.Struct, Generic[NumberId], gc=False, kw_only=True):
    """One entry of `segments_info`."""

    id: SegmentId
    category_id: NumberId
    bbox: msgspec.Raw = _NULL
    area: float | None = None
    iscrowd: int | bool = 0
