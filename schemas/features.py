"""`FeatureSpec`: the one declaration of an Example's features.

It declares each key, its kind and its number of values. The encoder's input, `parse_spec`, TFDS's
metadata and TensorFlow Metadata's schema are all derived from it, so they cannot disagree.
`Roles` names the features that hold images, boxes or labels, so that the report can draw records.
"""

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec


class Kind(enum.Enum):
    """The three kinds of values that a `tf.train.Feature` can hold.

    `coco_file.Kind`, the kind of an annotation file, is something else.
    """

    BYTES = "bytes"
    FLOAT = "float"  # float32
    INT64 = "int64"

    __hash__ = object.__hash__  # faster: Enum's own hash runs Python code


class Content(enum.Enum):
    """Meaning of the values, as far as readers use it."""

    PLAIN = "plain"  # nothing beyond the kind; bytes are opaque
    IMAGE = "image"  # bytes: an encoded image file (JPEG, PNG, …), which may differ per Example
    TEXT = "text"  # bytes: UTF-8
    CLASS_LABEL = "class_label"  # int64: an id of the label map, which may have gaps
    FLAG = "flag"  # int64: 0 or 1
    BOX_YXYX = "box_yxyx"  # float: four per box, ymin, xmin, ymax, xmax in [0, 1]


OPAQUE = "bytes"
"""Name of the layout whose records are any bytes, without features."""

OPAQUE_KEY = "record"
"""Key under which readers return such a record."""

SEQUENCE_KEY = "##SEQUENCE##"
"""TensorFlow Metadata's name for the struct of all per-step features."""

_KIND_OF_CONTENT = {
    Content.IMAGE: Kind.BYTES,
    Content.TEXT: Kind.BYTES,
    Content.CLASS_LABEL: Kind.INT64,
    Content.FLAG: Kind.INT64,
    Content.BOX_YXYX: Kind.FLOAT,
}

_DEFAULTS: dict[Kind, Any] = {Kind.BYTES: b"", Kind.FLOAT: 0.0, Kind.INT64: 0}


class Feature(msgspec.Struct, frozen=True, omit_defaults=True):
    """One feature of an Example. Manifests hold it as JSON in this form.

    Attributes:
        key: '/'-separated path, such as `image/object/bbox/xmin`.
        kind: kind of the values.
        repeated: whether it has 0..n values. Every Example then has the key, even with an empty
            list. Otherwise every Example has exactly one value, unless the feature is optional.
        doc: one line with unit and order, such as `left edges / image width, in [0, 1]`.
        content: meaning of the values.
        optional: whether the value may be missing. The Example then lacks the key, and a reader's
            default applies. An empty list would make `FixedLenFeature` fail. A feature list that
            is missing is read as one without steps.
        per_step: whether it is a feature list of a SequenceExample, with any number of steps. Each
            step has exactly one value, or 0..n values if the feature is repeated.
    """

    key: str
    kind: Kind
    repeated: bool
    doc: str
    content: Content = msgspec.field(default_factory=lambda: Content.PLAIN)  # always in the JSON
    optional: bool = False
    per_step: bool = False

    def __post_init__(self) -> None:
        if not all(self.key.split("/")):
            raise ValueError(f"key must be like a or a/b, got {self.key!r}: remove the empty part")
        if self.doc.splitlines() != [self.doc]:
            raise ValueError(f"doc of {self.key} must be one line, got {self.doc!r}: shorten it")
        wanted = _KIND_OF_CONTENT.get(self.content, self.kind)
        if self.kind is not wanted:
            what = f"content {self.content.value} of {self.key} needs kind {wanted.value}"
            raise ValueError(f"{what}, got {self.kind.value}: change one of them")

    @property
    def num_values(self) -> str:
        """Number of values in a record, or in each of its steps.

        >>> Feature("a", Kind.INT64, True, "pixels", per_step=True).num_values
        '0..n a step'
        """
        values = "0..n" if self.repeated else "0..1" if self.optional and not self.per_step else "1"
        return f"{values} a step" if self.per_step else values


def text(key: str, doc: str, *, repeated: bool = False) -> Feature:
    """Declare a feature of UTF-8 text."""
    return Feature(key, Kind.BYTES, repeated, doc, Content.TEXT)


def int64(key: str, doc: str, *, repeated: bool = False) -> Feature:
    """Declare a feature of integers."""
    return Feature(key, Kind.INT64, repeated, doc)


def floats(key: str, doc: str) -> Feature:
    """Declare a feature of any number of floats."""
    return Feature(key, Kind.FLOAT, True, doc)


def class_label(key: str, doc: str, *, repeated: bool = False) -> Feature:
    """Declare a feature of ids of the label map."""
    return Feature(key, Kind.INT64, repeated, doc, Content.CLASS_LABEL)


def image_file(key: str, doc: str) -> Feature:
    """Declare a feature of one encoded image file."""
    return Feature(key, Kind.BYTES, False, doc, Content.IMAGE)


@dataclass(frozen=True)
class FeatureSpec:
    """All features of an Example, in the order of the documentation.

    A key may be the beginning of another one, such as `image` and `image/filename` in TFDS's COCO.

    Attributes:
        name: the layout's name, such as `detection`.
        features: the features; at least one, with different keys. None in the layout `OPAQUE`.
    """

    name: str
    features: tuple[Feature, ...]

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty: give the layout's name, such as 'detection'")
        if not self.features and not self.is_opaque:
            raise ValueError(f"features of {self.name} must not be empty: declare at least one")
        keys = [feature.key for feature in self.features]
        if self.is_sequence:
            keys.append(SEQUENCE_KEY)  # a feature of this name would clash with it in the schema
        repeats = [key for key, count in Counter(keys).items() if count > 1]
        if repeats:
            raise ValueError(f"keys of {self.name} must differ, got {repeats} twice: remove one")

    @property
    def is_opaque(self) -> bool:
        """Whether records are any bytes."""
        return self.name == OPAQUE and not self.features

    @property
    def is_sequence(self) -> bool:
        """Whether records are SequenceExamples; the other features are their context."""
        return any(feature.per_step for feature in self.features)

    @property
    def sorted_features(self) -> tuple[Feature, ...]:
        """The features by key, in the order of deterministic protobuf serialization.

        Code points order like the UTF-8 bytes that protobuf compares.
        """
        return tuple(sorted(self.features, key=lambda feature: feature.key))


def parse_spec(spec: FeatureSpec, *, ragged: bool = False) -> dict[str, Any]:
    """Return the `features` argument of `tf.io.parse_example` and `parse_single_example`.

    A feature that is not repeated becomes a scalar without a default, so parsing fails if an
    Example lacks it. An optional feature has the default 0, 0.0 or b"". TensorFlow is imported
    when this is called.

    Args:
        spec: the features of the Examples to parse.
        ragged: whether repeated values become RaggedTensors with int64 row splits. The default is
            SparseTensors, as Model Garden's readers expect.

    Returns:
        One `tf.io.FixedLenFeature`, `VarLenFeature` or `RaggedFeature` by key, keys sorted.

    Raises:
        ValueError: when records are SequenceExamples.
    """
    if spec.is_sequence:
        raise ValueError(f"spec {spec.name!r} is of SequenceExamples: use parse_sequence_spec")
    return {f.key: _parser(f, ragged) for f in spec.sorted_features}


def parse_sequence_spec(
    spec: FeatureSpec, *, ragged: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the `context_features` and `sequence_features` of `tf.io.parse_sequence_example`.

    They suit `parse_single_sequence_example` too. A feature of one value per step becomes a dense
    tensor of shape [steps]. Batches are padded with 0, 0.0 or b"" to the longest sequence; the
    parser's third result holds the numbers of steps. The context is parsed as in `parse_spec`.
    TensorFlow is imported when this is called.

    Args:
        spec: the features of the SequenceExamples to parse.
        ragged: as in `parse_spec`, in steps too.
    """
    context: dict[str, Any] = {}
    sequence: dict[str, Any] = {}
    for feature in spec.sorted_features:
        part = sequence if feature.per_step else context
        part[feature.key] = _parser(feature, ragged)
    return context, sequence


def _parser(feature: Feature, ragged: bool) -> Any:
    import tensorflow as tf

    dtypes = {Kind.BYTES: tf.string, Kind.FLOAT: tf.float32, Kind.INT64: tf.int64}
    dtype = dtypes[feature.kind]
    if feature.repeated:
        if ragged:
            return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
        return tf.io.VarLenFeature(dtype)
    if feature.per_step:
        return tf.io.FixedLenSequenceFeature((), dtype, allow_missing=feature.optional)
    default = _DEFAULTS[feature.kind] if feature.optional else None
    return tf.io.FixedLenFeature((), dtype, default)


RecordValues = Mapping[str, tuple[Kind | None, Sequence[Any]]]
"""Kind and values of each feature of a record, by key; a feature without a list has no kind."""

Corners = tuple[float, float, float, float]
"""`xmin, ymin, xmax, ymax` of a box, as fractions of the picture's width and height."""

_EDGES = tuple(f"image/object/bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))
_POINTS = ("image/object/keypoint/x", "image/object/keypoint/y")
_SEEN = ("image/object/keypoint/visibility",)
_MASK_KEY = "image/object/mask"
_OBJECT_LABELS = ("image/object/class/label", "objects/label", "category_id")
OBJECT_TEXT = "image/object/class/text"
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


class BoxForm(enum.Enum):
    """The form of boxes in a record."""

    EDGES = "edges"  # four features: xmin, ymin, xmax, ymax, in [0, 1]
    YXYX = "yxyx"  # one feature, four values per box: ymin, xmin, ymax, xmax, in [0, 1]
    XYWH_PX = "xywh_px"  # one feature, four values per box: x, y, width, height, in pixels


@dataclass(frozen=True)
class ObjectRoles:
    """Keys of the features that describe one list of objects.

    Attributes:
        form: form of the boxes.
        boxes: keys of the boxes: one key, or for `EDGES` the four of xmin, ymin, xmax, ymax.
        labels: key of the class ids, one per object; empty for none.
        texts: key of the class names, one per object; empty for none.
    """

    form: BoxForm
    boxes: tuple[str, ...]
    labels: str = ""
    texts: str = ""


@dataclass(frozen=True)
class Roles:
    """Keys of the features that a picture of a record is drawn from; empty for a missing role.

    Attributes:
        images: keys of image files, one file per record and key.
        pixels: keys of pictures that are serialized tensors or plain values.
        width: key of the picture's width in px; only needed for plain values.
        height: key of the picture's height in px, likewise.
        objects: lists of objects; the report counts the first one.
        class_label: key of the class ids of the whole record.
        class_text: key of the class names of the whole record.
        keypoints: keys of x and y in [0, 1] of the first list's objects, and of the visibility if
            any: 0 for unlabelled, 1 for hidden, 2 for visible.
        masks: key of image files of the whole picture's size, one per object of the first list.
        segmentations: keys of image files that give the class or instance of each pixel.
        captions: keys of texts about the picture.
    """

    images: tuple[str, ...] = ()
    pixels: tuple[str, ...] = ()
    width: str = ""
    height: str = ""
    objects: tuple[ObjectRoles, ...] = ()
    class_label: str = ""
    class_text: str = ""
    keypoints: tuple[str, ...] = ()
    masks: str = ""
    segmentations: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()

    @property
    def class_keys(self) -> tuple[str, str]:
        """Keys of class ids and names: of the first list of objects, or else of the record."""
        of_record = self.class_label, self.class_text
        return next(((first.labels, first.texts) for first in self.objects), of_record)


def roles_of_spec(spec: FeatureSpec) -> Roles:
    """Return the roles of a data set's features. Per-step features have no roles."""
    features = [feature for feature in spec.features if not feature.per_step]
    kinds = {feature.key: feature.kind for feature in features}
    boxes = [f.key for f in features if f.content is Content.BOX_YXYX]
    labels = [f.key for f in features if f.content is Content.CLASS_LABEL]
    labels += _existing(("label",), kinds, Kind.INT64) if spec.name == "arrays" else ()
    plain = {f.key: f.kind for f in features if f.content is Content.PLAIN and not f.repeated}
    return _roles(
        kinds,
        images=tuple(f.key for f in features if f.content is Content.IMAGE and not f.repeated),
        pixels=_existing(_PIXELS, plain, Kind.BYTES),
        objects=_object_lists(kinds, boxes, may_be_px=spec.name == "keras"),
        class_labels=labels,
    )


def roles_of_keys(kinds: Mapping[str, Kind], images: Collection[str] = ()) -> Roles:
    """Return the roles of features that another program wrote, guessed from common keys.

    Args:
        kinds: kinds of the features, by key.
        images: keys of features that hold image files, by their content.

    >>> roles = roles_of_keys({"image": Kind.BYTES, "target": Kind.INT64}, ["image"])
    >>> roles.images, roles.class_label
    (('image',), 'target')
    """
    boxes = [key for key in sorted(kinds) if key.endswith("/bbox") and kinds[key] is Kind.FLOAT]
    pictures = tuple(sorted({*images} & {*kinds} - {_MASK_KEY, *_SEGMENTATIONS}))
    return _roles(
        kinds,
        images=pictures,
        pixels=() if pictures else _existing(_PIXELS, kinds, Kind.BYTES),
        objects=_object_lists(kinds, boxes, may_be_px=True),
        class_labels=_existing(_CLASS_LABELS, kinds, Kind.INT64),
    )


def values_at(features: RecordValues, key: str, kind: Kind) -> Sequence[Any]:
    """Return the values of a feature; none if it is missing or of another kind."""
    found_kind, values = features.get(key, (None, ()))
    return values if found_kind is kind else ()


def corners_of(
    objects: ObjectRoles, features: RecordValues, size_px: tuple[int, int]
) -> Iterator[Corners]:
    """Return the boxes of a list of objects.

    Args:
        objects: keys of the objects' features.
        features: the record's features.
        size_px: width and height of the picture.

    Raises:
        ValueError: when edges or numbers are missing.

    >>> features = {"objects/bbox": (Kind.FLOAT, [0.5, 0.25, 1.0, 0.75])}
    >>> list(corners_of(ObjectRoles(BoxForm.YXYX, ("objects/bbox",)), features, (8, 8)))
    [(0.25, 0.5, 0.75, 1.0)]
    """
    lists = [values_at(features, key, Kind.FLOAT) for key in objects.boxes]
    if objects.form is BoxForm.EDGES:
        if len(set(map(len, lists))) > 1:
            raise ValueError("boxes have more values of some edges than of others")
        return zip(*lists, strict=True)
    (numbers,) = lists
    if len(numbers) % 4:
        raise ValueError(f"boxes have four numbers each, got {len(numbers)}")
    fours = zip(*[iter(numbers)] * 4, strict=True)
    if objects.form is BoxForm.YXYX:
        return ((x, y, x_end, y_end) for y, x, y_end, x_end in fours)
    width, height = size_px
    return ((x / width, y / height, (x + w) / width, (y + h) / height) for x, y, w, h in fours)


def _object_lists(
    kinds: Mapping[str, Kind], boxes: Iterable[str], *, may_be_px: bool
) -> tuple[ObjectRoles, ...]:
    """Return the lists of objects: with edges, per key of boxes, or else with boxes in pixels."""
    lists: list[tuple[BoxForm, tuple[str, ...]]] = [(BoxForm.YXYX, (key,)) for key in boxes]
    if len(_existing(_EDGES, kinds, Kind.FLOAT)) == len(_EDGES):
        lists.insert(0, (BoxForm.EDGES, _EDGES))
    if may_be_px and not lists and kinds.get("bbox") is Kind.FLOAT:
        lists.append((BoxForm.XYWH_PX, ("bbox",)))
    found = []
    for form, keys in lists:  # labels with the boxes' prefix come first
        prefix = keys[0][: keys[0].rfind("/") + 1]
        labels = _first_existing((f"{prefix}label", *_OBJECT_LABELS), kinds, Kind.INT64)
        texts = (OBJECT_TEXT,) if form is BoxForm.EDGES else (f"{prefix}text",) if prefix else ()
        found.append(ObjectRoles(form, keys, labels, _first_existing(texts, kinds, Kind.BYTES)))
    return tuple(found)


def _roles(
    kinds: Mapping[str, Kind],
    images: tuple[str, ...],
    pixels: tuple[str, ...],
    objects: tuple[ObjectRoles, ...],
    class_labels: Iterable[str],
) -> Roles:
    """Return the given roles, with those that follow from the keys alone."""
    of_objects = {found.labels for found in objects}
    points = _existing(_POINTS, kinds, Kind.FLOAT)
    return Roles(
        images=images,
        pixels=pixels,
        width=_first_existing(_WIDTHS, kinds, Kind.INT64),
        height=_first_existing(_HEIGHTS, kinds, Kind.INT64),
        objects=objects,
        class_label=next((key for key in class_labels if key not in of_objects), ""),
        class_text=_first_existing(_CLASS_TEXTS, kinds, Kind.BYTES),
        keypoints=points + _existing(_SEEN, kinds, Kind.INT64) if points == _POINTS else (),
        masks=_first_existing((_MASK_KEY,), kinds, Kind.BYTES),
        segmentations=_existing(_SEGMENTATIONS, kinds, Kind.BYTES),
        captions=_existing(_CAPTIONS, kinds, Kind.BYTES),
    )


def _existing(keys: Iterable[str], kinds: Mapping[str, Kind], kind: Kind) -> tuple[str, ...]:
    """Return the keys that exist and have the given kind."""
    return tuple(key for key in keys if kinds.get(key) is kind)


def _first_existing(keys: Iterable[str], kinds: Mapping[str, Kind], kind: Kind) -> str:
    return next(iter(_existing(keys, kinds, kind)), "")
