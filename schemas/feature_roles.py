"""Which feature of a record plays which role: its picture, the boxes on it, what they are called.

A declared record's follow from its `FeatureSpec`; a stranger's from its keys, as the Object
Detection API, Model Garden, the Keras recipe, TFDS and Kaggle's data sets call them.
"""

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from schemas.features import Content, FeatureSpec, Kind

Corners = tuple[float, float, float, float]
"""`xmin, ymin, xmax, ymax` of a box, as parts of the picture's width and height."""

_BOX = "image/object/bbox/"
_MASK_KEY = "image/object/mask"
_OBJECT_LABELS = ("image/object/class/label", "objects/label", "category_id")
_CLASS_LABELS = ("image/class/label", "label", "class", "target")
_CLASS_TEXTS = ("image/class/text", "class_name", "class/text")
_WIDTHS, _HEIGHTS = ("image/width", "width"), ("image/height", "height")
_PIXELS = ("image", "image_raw", "raw_image", "image/encoded", "lr", "hr")
_CAPTIONS = ("image/caption", "caption", "captions/text", "text")
_SEGMENTATIONS = (
    "image/segmentation/class/encoded",
    "image/panoptic/category_mask",
    "image/panoptic/instance_mask",
)
_ARRAY_LAYOUT, _PIXEL_BOX_LAYOUT = "arrays", "keras"


class BoxForm(enum.Enum):
    """How boxes stand in a record."""

    EDGES = "edges"  # four features: xmin, ymin, xmax, ymax, in [0, 1]
    YXYX = "yxyx"  # one feature, four values a box: ymin, xmin, ymax, xmax, in [0, 1]
    XYWH_PX = "xywh_px"  # one feature, four values a box: x, y, width, height, in pixels


@dataclass(frozen=True)
class ObjectRoles:
    """Keys of one list of objects.

    Attributes:
        form: how their boxes stand there.
        boxes: keys of the boxes: four of `EDGES`, in the order xmin, ymin, xmax, ymax, else one.
        labels: of class ids, an object; empty for none, as in what follows.
        texts: of class names, an object.
    """

    form: BoxForm
    boxes: tuple[str, ...]
    labels: str = ""
    texts: str = ""


@dataclass(frozen=True)
class PointRoles:
    """Keys of keypoints, object by object, as many of each.

    Attributes:
        x: of their x, as a part of the picture's width.
        y: of their y, likewise of its height.
        visibility: of 0 for unlabelled, 1 for hidden, 2 for visible; empty for none.
    """

    x: str
    y: str
    visibility: str = ""


@dataclass(frozen=True)
class Roles:
    """Which keys play which role; empty where none does.

    Attributes:
        images: of image files, one a record each.
        pixels: of pictures that are no image files: serialized tensors, or plain values.
        width: of the picture's width in px; needed for plain values alone.
        height: likewise.
        objects: lists of objects; the first is the one that is counted.
        class_label: of the record's own class id, or of several.
        class_text: of its class's name, or of several.
        keypoints: of the first list's objects.
        masks: of image files, one of the whole picture an object of the first list.
        segmentations: of image files that tell the class or instance of each pixel.
        captions: of texts about the picture.
    """

    images: tuple[str, ...] = ()
    pixels: tuple[str, ...] = ()
    width: str = ""
    height: str = ""
    objects: tuple[ObjectRoles, ...] = ()
    class_label: str = ""
    class_text: str = ""
    keypoints: PointRoles | None = None
    masks: str = ""
    segmentations: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()


def roles_of_spec(spec: FeatureSpec) -> Roles:
    """Return the roles of a data set's features; of SequenceExamples those of the context."""
    features = [feature for feature in spec.features if not feature.per_step]
    kinds = {feature.key: feature.kind for feature in features}
    objects = _edges(kinds)
    objects += [_flat(f.key, kinds) for f in features if f.content is Content.BOX_YXYX]
    if spec.name == _PIXEL_BOX_LAYOUT and kinds.get("bbox") is Kind.FLOAT:
        objects.append(_in_pixels(kinds))
    labels = [f.key for f in features if f.content is Content.CLASS_LABEL]
    if spec.name == _ARRAY_LAYOUT:
        labels += _first_of(("label",), kinds, Kind.INT64)
    of_objects = {found.labels for found in objects}
    images = tuple(f.key for f in features if f.content is Content.IMAGE and not f.repeated)
    plain = {f.key: f.kind for f in features if f.content is Content.PLAIN and not f.repeated}
    return _with_known_keys(
        kinds,
        images=images,
        pixels=tuple(key for key in _PIXELS if plain.get(key) is Kind.BYTES),
        objects=objects,
        class_label="".join([key for key in labels if key not in of_objects][:1]),
    )


def roles_of_keys(kinds: Mapping[str, Kind], images: Collection[str] = ()) -> Roles:
    """Return the roles of strangers' features.

    Args:
        kinds: of the features, by key.
        images: keys whose values turned out to be image files.

    >>> roles = roles_of_keys({"image": Kind.BYTES, "target": Kind.INT64}, ["image"])
    >>> roles.images, roles.class_label
    (('image',), 'target')
    """
    flat = sorted(
        key for key, kind in kinds.items() if key.endswith("/bbox") and kind is Kind.FLOAT
    )
    objects = _edges(kinds) + [_flat(key, kinds) for key in flat]
    if not objects and kinds.get("bbox") is Kind.FLOAT:
        objects.append(_in_pixels(kinds))
    no_pictures = {_MASK_KEY, *_SEGMENTATIONS}
    pictures = tuple(key for key in sorted(kinds) if key in images and key not in no_pictures)
    pixels = (key for key in _PIXELS if kinds.get(key) is Kind.BYTES and key not in images)
    return _with_known_keys(
        kinds,
        images=pictures,
        pixels=() if pictures else tuple(pixels),
        objects=objects,
        class_label="".join(_first_of(_CLASS_LABELS, kinds, Kind.INT64)),
    )


def corners_of(
    objects: ObjectRoles, values_of: Callable[[str], Sequence[float]], size_px: tuple[int, int]
) -> Iterator[Corners]:
    """Return the boxes of a list of objects.

    Args:
        objects: which keys they have.
        values_of: gives the values of a key, none where the record lacks it.
        size_px: width and height of the picture.

    Raises:
        ValueError: when edges or numbers are missing.

    >>> values = {"objects/bbox": [0.5, 0.25, 1.0, 0.75]}
    >>> list(corners_of(ObjectRoles(BoxForm.YXYX, ("objects/bbox",)), values.__getitem__, (8, 8)))
    [(0.25, 0.5, 0.75, 1.0)]
    """
    lists = [values_of(key) for key in objects.boxes]
    if objects.form is BoxForm.EDGES:
        if len(set(map(len, lists))) > 1:
            raise ValueError("boxes have some edges more often than others")
        return zip(*lists, strict=True)
    (numbers,) = lists
    if len(numbers) % 4:
        raise ValueError(f"boxes have four numbers each, got {len(numbers)}")
    fours = zip(*[iter(numbers)] * 4, strict=True)
    if objects.form is BoxForm.YXYX:
        return ((x, y, x_end, y_end) for y, x, y_end, x_end in fours)
    width, height = size_px
    return ((x / width, y / height, (x + w) / width, (y + h) / height) for x, y, w, h in fours)


def _edges(kinds: Mapping[str, Kind]) -> list[ObjectRoles]:
    keys = tuple(f"{_BOX}{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))
    if not all(kinds.get(key) is Kind.FLOAT for key in keys):
        return []
    texts = _first_of(("image/object/class/text",), kinds, Kind.BYTES)
    return [ObjectRoles(BoxForm.EDGES, keys, _label_beside(_BOX, kinds), "".join(texts))]


def _flat(key: str, kinds: Mapping[str, Kind]) -> ObjectRoles:
    beside = key.rpartition("/")[0]
    texts = _first_of((f"{beside}/text",), kinds, Kind.BYTES)
    return ObjectRoles(BoxForm.YXYX, (key,), _label_beside(f"{beside}/", kinds), "".join(texts))


def _in_pixels(kinds: Mapping[str, Kind]) -> ObjectRoles:
    return ObjectRoles(BoxForm.XYWH_PX, ("bbox",), _label_beside("", kinds))


def _label_beside(prefix: str, kinds: Mapping[str, Kind]) -> str:
    """Return the key of objects' class ids, best one with the prefix of their boxes."""
    own = f"{prefix}label" if prefix != _BOX else _OBJECT_LABELS[0]
    return "".join(_first_of((own, *_OBJECT_LABELS), kinds, Kind.INT64))


def _first_of(keys: Sequence[str], kinds: Mapping[str, Kind], kind: Kind) -> list[str]:
    """Return the first key that is there and of a kind, in a list; an empty one for none."""
    return [key for key in keys if kinds.get(key) is kind][:1]


def _with_known_keys(
    kinds: Mapping[str, Kind],
    images: tuple[str, ...],
    pixels: tuple[str, ...],
    objects: Sequence[ObjectRoles],
    class_label: str,
) -> Roles:
    """Return the roles with those that keys alone tell."""
    point = "image/object/keypoint/"
    has_points = all(kinds.get(f"{point}{axis}") is Kind.FLOAT for axis in "xy")
    visibility = "".join(_first_of((f"{point}visibility",), kinds, Kind.INT64))
    masks = _first_of((_MASK_KEY,), kinds, Kind.BYTES)
    return Roles(
        images=images,
        pixels=pixels,
        width="".join(_first_of(_WIDTHS, kinds, Kind.INT64)),
        height="".join(_first_of(_HEIGHTS, kinds, Kind.INT64)),
        objects=tuple(objects),
        class_label=class_label,
        class_text="".join(_first_of(_CLASS_TEXTS, kinds, Kind.BYTES)),
        keypoints=PointRoles(f"{point}x", f"{point}y", visibility) if has_points else None,
        masks="".join(masks),
        segmentations=tuple(key for key in _SEGMENTATIONS if kinds.get(key) is Kind.BYTES),
        captions=tuple(key for key in _CAPTIONS if kinds.get(key) is Kind.BYTES),
    )
