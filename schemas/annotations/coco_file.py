"""Strict parser of one COCO annotation file.

The format: https://cocodataset.org/#format-data, and https://www.lvisdataset.org/dataset for the
additions of LVIS. The file is held in memory and decoded in one typed pass. Large fields such as
boxes and segmentations stay slices of the file until their image is read.
"""

import enum
import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.schemas.geometry.boxes import MAX_AREA_PX2
from beam_tfrec.schemas.labels import License, read_licenses, unite_labels
from beam_tfrec.schemas.manifest import Label

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
SegmentId = Annotated[int, msgspec.Meta(ge=0, le=2**24 - 1)]
AnyId = TypeVar("AnyId")  # int64, or text too where it is accepted
AnyCategory = TypeVar("AnyCategory")  # int64; the class's name in files of one image each

NOTHING = msgspec.Raw(b"")
NO_NAME = "\0 no name"  # compared by identity
_NULL = msgspec.Raw(b"null")
_FieldValue = int | float | str | None
_UTF8_BOM = b"\xef\xbb\xbf"
_MAX_FIRST_BYTES = 2**24  # The first entry of a section must lie within them.
_REMEDY = "give a COCO annotation file"


class Kind(enum.Enum):
    """Kind of an annotation file, in the order in which a split's files are joined."""

    INSTANCES = "instances"
    KEYPOINTS = "keypoints"
    CAPTIONS = "captions"
    PANOPTIC = "panoptic"


class CocoImage(msgspec.Struct, Generic[AnyId], gc=False, kw_only=True):
    """One entry of `images`; sizes in pixels, `file_name` as `blob_name` gives it.

    LVIS gives no `file_name`, but a `coco_url`, and lists of category ids.
    """

    id: AnyId
    file_name: str = NO_NAME
    width: PositiveInt
    height: PositiveInt
    license: Any = None
    coco_url: msgspec.Raw = NOTHING
    neg_category_ids: list[Int64] | None = None
    not_exhaustive_category_ids: list[Int64] | None = None


class CocoCategory(msgspec.Struct, gc=False, kw_only=True):
    """One entry of `categories`."""

    id: Int64
    name: str
    keypoints: list[str] | None = None
    isthing: int | bool = True


class PanopticCategory(CocoCategory, gc=False, kw_only=True):
    """One entry of `categories` of a panoptic file, where `isthing` is needed."""

    isthing: int | bool


class CocoObject(msgspec.Struct, Generic[AnyCategory], gc=False, kw_only=True):
    """Fields of an object or a panoptic segment that are read; others are skipped."""

    category_id: AnyCategory
    bbox: msgspec.Raw = _NULL
    area: float | None = None
    iscrowd: int | bool = 0
    keypoints: msgspec.Raw = NOTHING
    segmentation: msgspec.Raw = NOTHING


class CocoInstance(CocoObject[AnyCategory], Generic[AnyId, AnyCategory], gc=False, kw_only=True):
    """An object's entry of `annotations`."""

    id: AnyId
    image_id: AnyId


class CocoBox(
    CocoInstance[AnyId, AnyCategory], Generic[AnyId, AnyCategory], gc=False, kw_only=True
):
    """An object's entry without its segmentation; a slice would take 48 bytes."""

    segmentation: msgspec.Raw = msgspec.field(default=NOTHING, name="-")


class CocoCaption(msgspec.Struct, Generic[AnyId], gc=False, kw_only=True):
    """One entry of `annotations` of a captions file."""

    id: AnyId
    image_id: AnyId
    caption: str


class CocoPanoptic(msgspec.Struct, Generic[AnyId], gc=False, kw_only=True):
    """One entry of `annotations` of a panoptic file: all segments of an image."""

    image_id: AnyId
    file_name: str
    segments_info: msgspec.Raw

    @property
    def id(self) -> AnyId:
        """The image's id, since the entry has none of its own."""
        return self.image_id


class CocoSegment(CocoObject[Int64], gc=False, kw_only=True):
    """One entry of `segments_info`."""

    id: SegmentId


CocoAnnotation = CocoInstance | CocoCaption | CocoPanoptic


class _EveryKey:
    """A JSON key that equals no other, so that a dict keeps repeated keys."""

    def __init__(self, _: type, text: str) -> None:
        self.text = text


_SECTIONS = msgspec.json.Decoder(dict[_EveryKey, msgspec.Raw], dec_hook=_EveryKey)


class CocoFile:
    """A parsed annotation file of any kind.

    Attributes:
        where: its name, for messages.
        kind: kind of its annotations.
        images: entries in the file's order; ids and names are unique.
        categories: entries in the file's order; an id has one name. Empty for captions.
        annotations: entries in the file's order.
        licenses: entries sorted by id.
        image_values: values of `image_field` by image id, without missing ones.
    """

    def __init__(
        self,
        data: bytes,
        where: str,
        *,
        string_ids: bool = False,
        image_field: str = "",
        segmentations: bool = True,
    ) -> None:
        """Parse a file.

        Args:
            data: the file's bytes, UTF-8 with or without a BOM.
            where: the file's name, for messages.
            string_ids: accept ids that are strings.
            image_field: field of images to keep as text; empty for none.
            segmentations: keep segmentations even where every object has an area.

        Raises:
            RuntimeError: an `E-ANN-…` line when the file breaks a rule.
        """
        self.where = where
        sections = self._sections(data)
        images, annotations = self._take(sections, "images"), self._take(sections, "annotations")
        self.kind = self._kind_by_keys(annotations)
        ids: Any = Int64 | str if string_ids else Int64
        self.images: list[CocoImage] = self._decode(images, "images", CocoImage[ids])
        self.image_values = self._decode_field(images, image_field) if image_field else {}
        self.categories: list[CocoCategory] = []
        if self.kind is not Kind.CAPTIONS:
            section = self._take(sections, "categories")
            category = PanopticCategory if self.kind is Kind.PANOPTIC else CocoCategory
            self.categories = self._decode(section, "categories", category)
        entries: dict[Kind, Any] = {
            Kind.INSTANCES: CocoInstance[ids, Int64] if segmentations else CocoBox[ids, Int64],
            Kind.CAPTIONS: CocoCaption[ids],
            Kind.PANOPTIC: CocoPanoptic[ids],
        }
        self.annotations: list[Any] = self._decode(annotations, "annotations", entries[self.kind])
        if self.kind is Kind.INSTANCES:
            areas = [annotation.area for annotation in self.annotations] or [0.0]
            is_usable = None not in areas and 0 <= min(areas) <= max(areas) <= MAX_AREA_PX2
            if not (segmentations or is_usable):  # An area then comes from the segmentation.
                self.annotations.clear()  # both lists at once take 0.2 kB more an annotation
                entry = CocoInstance[ids, Int64]
                self.annotations = self._decode(annotations, "annotations", entry)
            has_keypoints = any(one.keypoints is not NOTHING for one in self.annotations)
            self.kind = Kind.KEYPOINTS if has_keypoints else Kind.INSTANCES
        self.licenses: list[License] = read_licenses(dict(sections).get("licenses", _NULL))
        self._check_images()
        unite_labels([Label(category.id, category.name) for category in self.categories], where)

    def path_of(self, annotation: CocoAnnotation) -> str:
        """Return an annotation's JSON path, such as `$.annotations[5]`."""
        place = next(i for i, other in enumerate(self.annotations) if other is annotation)
        return f"$.annotations[{place}]"

    def wrong_type(self, what: str, remedy: str = "correct the file") -> RuntimeError:
        """Return the fault of a value of the wrong type."""
        if "got `str`" in what and what.endswith((".id`", ".image_id`")):
            remedy = "correct it, or give --string_ids"
        if "`isthing`" in what:
            remedy = "give each category of a panoptic file isthing: 1 if countable, 0 if stuff"
        return self.fault("E-ANN-TYPE", what, remedy)

    def decode(
        self,
        raw: msgspec.Raw,
        kind: Any,
        path_of: Callable[[], str],
        remedy: str = "correct the file",
    ) -> Any:
        """Decode a part of the file as a type.

        Raises:
            RuntimeError: `E-ANN-TYPE`, with the JSON path, when it has another type; `E-ANN-JSON`
                when it holds text that is not UTF-8.
        """
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError as error:
            what, _, at = str(error).partition(" - at `$")  # no path: the part itself
            raise self.wrong_type(f"{what} - at `{path_of()}{at or '`'}", remedy) from None
        except (ValueError, RecursionError) as error:
            what = f"{path_of()}: {error}"
            raise self.fault("E-ANN-JSON", what, "repair the file, or save it as UTF-8") from None

    def fault(self, code: str, what: str, remedy: str) -> RuntimeError:
        """Return a fault of the file."""
        return run_fault(code, self.where, what, remedy)

    def _sections(self, data: bytes) -> list[tuple[str, msgspec.Raw]]:
        """Return the keys of the file's JSON object with their undecoded values."""
        try:
            pairs = _SECTIONS.decode(data.removeprefix(_UTF8_BOM))
        except msgspec.ValidationError as error:
            raise self.fault("E-ANN-JSON", f"not a JSON object ({error})", _REMEDY) from None
        except (ValueError, RecursionError) as error:
            remedy = "repair or unpack the file, or give another one"
            raise self.fault("E-ANN-JSON", str(error), remedy) from None
        return [(key.text, value) for key, value in pairs.items()]

    def _take(self, sections: Sequence[tuple[str, msgspec.Raw]], name: str) -> msgspec.Raw:
        """Return a section; it must occur exactly once."""
        names = [key for key, _ in sections]
        if names.count(name) == 1:
            return dict(sections)[name]
        problem = "twice" if name in names else "missing"
        what = f"section {name!r} is {problem} (found {', '.join(names[:8]) or 'nothing'})"
        raise self.fault("E-ANN-SECTION", what, _REMEDY)

    def _kind_by_keys(self, annotations: msgspec.Raw) -> Kind:
        """Return the kind by the keys of the first annotation; instances if there is none."""
        head = bytes(memoryview(annotations)[:_MAX_FIRST_BYTES]).decode(errors="replace")
        try:
            keys, _ = json.JSONDecoder().raw_decode(head, head.index("{"))
        except (ValueError, RecursionError):
            return Kind.INSTANCES
        if "segments_info" in keys:
            return Kind.PANOPTIC
        if "category_id" in keys or "bbox" in keys:
            return Kind.INSTANCES
        if "caption" in keys:
            return Kind.CAPTIONS
        first = ", ".join([*keys][:8])
        what = f"section 'annotations' is of no known kind: its first has {first}"
        remedy = "give instances, person_keypoints, captions or panoptic files"
        raise self.fault("E-ANN-SECTION", what, remedy)

    def _decode(self, section: msgspec.Raw, name: str, entry: Any) -> Any:
        """Return a section's entries."""
        return self.decode(section, list.__class_getitem__(entry), lambda: f"$.{name}")

    def _decode_field(self, images: msgspec.Raw, name: str) -> dict[int | str, str]:
        """Return a field of images as text, by image id.

        Raises:
            RuntimeError: `E-ANN-TYPE` when a value is neither text nor a number.
        """
        entry = msgspec.defstruct("Entry", [("value", _FieldValue, None)], rename={"value": name})
        remedy = "write text or a number, or split by another field"
        kind = list.__class_getitem__(entry)
        entries = self.decode(images, kind, lambda: "$.images", remedy)
        texts = [_as_text(found.value) for found in entries]
        ids = (image.id for image in self.images)
        return {number: text for number, text in zip(ids, texts, strict=True) if text}

    def _check_images(self) -> None:
        """Normalize file names; refuse names outside the root, and repeated ids or names."""
        for place, image in enumerate(self.images):
            path = f"$.images[{place}]"
            given = image.file_name
            if given is NO_NAME:
                given = self._name_by_url(image, path)
            try:
                image.file_name = blob_name(given)
            except ValueError as error:
                what = f"{path} (id {image.id}): file_name {given!r} {error}"
                raise self.fault("E-ANN-PATH", what, "give names relative to --images") from None
        refuse_repeated_ids(self.images, self.where)

    def _name_by_url(self, image: CocoImage, path: str) -> str:
        """Return the file name of an LVIS image, which has only a URL."""
        try:
            return name_of_url(msgspec.json.decode(image.coco_url, type=str))
        except ValueError:
            what = f"Object missing required field `file_name` - at `{path}`"
            raise self.wrong_type(what) from None


def refuse_repeated_ids(images: Sequence[CocoImage], where: str) -> None:
    """Refuse repeated image ids or names. A number and its text are the same id.

    Raises:
        RuntimeError: `E-ANN-DUPLICATE`.
    """
    for kind in ("id", "file_name"):
        first: dict[str, int] = {}
        for place, image in enumerate(images):
            value = str(getattr(image, kind))
            if (other := first.setdefault(value, place)) != place:
                what = f"$.images[{other}] and $.images[{place}] have the same {kind} {value!r}"
                raise run_fault("E-ANN-DUPLICATE", where, what, "remove one")


def _as_text(value: str | float | None) -> str:
    """Return a field's value as text, equal for equal numbers.

    >>> _as_text("s7"), _as_text(7), _as_text(7.0), _as_text(0.5), _as_text(None)
    ('s7', '7', '7', '0.5', '')
    """
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return "" if value is None else str(value)


_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z]:[\\/]")


def blob_name(file_name: str) -> str:
    """Return a `file_name` as the listing has it: relative to the root, without `.` components.

    >>> blob_name("./train2017/a[1].jpg")
    'train2017/a[1].jpg'

    Raises:
        ValueError: when the name is empty, absolute, a URL, or has `..` in it.
    """
    name = "/".join(part for part in file_name.split("/") if part != ".")
    if not name or name.endswith("/"):
        raise ValueError("names no file")
    if _ABSOLUTE.match(name):
        raise ValueError("is not relative to the image root")
    if ".." in re.split(r"[/\\]", file_name):
        raise ValueError("has a folder '..'")
    if "\0" in name:
        raise ValueError("holds a NUL")
    return name


def name_of_url(url: str) -> str:
    """Return the last two components of a URL's path, as LVIS's images are kept.

    They are not decoded, and the URL is never fetched.

    >>> name_of_url("http://images.cocodataset.org/train2017/000000391895.jpg")
    'train2017/000000391895.jpg'
    """
    _, _, path = url.rpartition("://")
    return "/".join(path.split("/")[1:][-2:])
