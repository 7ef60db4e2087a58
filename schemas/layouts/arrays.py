"""The `arrays` layout: an item of an array and its label, with keys that tutorials' readers use."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, Self

import msgspec

from beam_tfrec.schemas.example import FeatureValues
from beam_tfrec.schemas.features import Feature, FeatureSpec, Kind, class_label
from beam_tfrec.schemas.fields import ArrayFields, EncodedImage, NamedTensor, Scalar, TensorFields
from beam_tfrec.schemas.layouts import Built, Labels, Layout
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.tensors import TENSOR_TYPES, serialize_tensor

_FIELDS = msgspec.msgpack.Decoder(TensorFields)
_BYTES_BESIDE_ARRAY = 130  # keys, lengths, shape, label and framing
_DTYPE, _RANK, _LABEL, _FEATURE, _TENSOR = "dtype", "rank", "label", "feature", "tensor"
_KINDS = {str: Kind.BYTES, float: Kind.FLOAT}
_SHAPE = (
    Feature("height", Kind.INT64, False, "length of the item's first axis"),
    Feature("width", Kind.INT64, False, "length of the item's second axis"),
    Feature("depth", Kind.INT64, False, "length of the item's third axis, 1 where it has two"),
)
_ANY_SHAPE = (Feature("shape", Kind.INT64, True, "lengths of the item's axes"),)
_NUMBER = Feature("label", Kind.INT64, False, "the label array's value")
_CLASS = class_label("label", "id in label_map.pbtxt")
FEATURE_KEYS = frozenset({"height", "width", "depth", "shape", "label", "raw_image"})
"""Keys of the layout's own features, which other arrays must not have as names."""


class Encoding(Enum):
    """Form of the values in `raw_image`."""

    TENSOR = "tensor"  # a serialized TensorProto, for tf.io.parse_tensor
    RAW = "raw"  # the values alone, little-endian, for tf.io.decode_raw


def found_in(fields: ArrayFields, tensors: Sequence[str] = ()) -> frozenset[str]:
    """Return an item's type, rank, label and features as text, for `ArraysLayout.resolved`.

    With named tensors, the types of all are returned instead of type and rank.
    """
    found = {f"{_DTYPE} {fields.dtype}", f"{_RANK} {len(fields.shape)}"}
    if tensors:
        named = zip(tensors, fields.tensors, strict=True)
        found = {f"{_TENSOR} {tensor.dtype} {name}" for name, tensor in named}
    if fields.label is not None:
        found.add(f"{_LABEL} {_kind_of_value(fields.label).value}")
    for name, value in fields.features.items():
        found.add(f"{_FEATURE} {_kind_of_value(value).value} {name}")
    return frozenset(found)


def _kind_of_value(value: Scalar) -> Kind:
    return _KINDS.get(type(value), Kind.INT64)


@dataclass(frozen=True)
class ArraysLayout(Layout):
    """One Example per item of an array.

    All attributes but `encoding` and `tensors` are set by `resolved`.

    Attributes:
        encoding: form of the values in `raw_image`.
        dtype: type of all items; with `tensors`, the types in their order.
        pictures: whether every item has two or three axes.
        label: kind of the labels; None without labels.
        others: names and kinds of the features from other arrays.
        tensors: names of the arrays whose items are features of their own, instead of `raw_image`.
    """

    name: ClassVar[str] = "arrays"
    first_label_id: ClassVar[int | None] = 0
    reads_images: ClassVar[bool] = False
    sample_noun: ClassVar[str] = "item"

    encoding: Encoding = Encoding.TENSOR
    dtype: str = ""
    pictures: bool = True
    label: Kind | None = None
    others: tuple[tuple[str, Kind], ...] = ()
    tensors: tuple[str, ...] = ()

    @property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        labels = {None: (), Kind.BYTES: (_CLASS,)}.get(self.label, (_NUMBER,))
        others = (Feature(n, kind, False, f"of the array {n}") for n, kind in self.others)
        dtypes = self.dtype.split() or [""] * len(self._item_keys)
        items = zip(self._item_keys, dtypes, strict=True)
        values = (Feature(key, Kind.BYTES, False, self._form_of(dtype)) for key, dtype in items)
        shape = () if self.tensors else _SHAPE if self.pictures else _ANY_SHAPE
        return FeatureSpec(self.name, (*shape, *labels, *others, *values))

    @property
    def _item_keys(self) -> tuple[str, ...]:
        return self.tensors or ("raw_image",)

    def _form_of(self, dtype: str) -> str:
        if self.encoding is Encoding.RAW:
            return f"{dtype} values in C order, little-endian, for tf.io.decode_raw"
        return f"a serialized {dtype} tensor, for tf.io.parse_tensor"

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        return {"encoding": self.encoding.value}

    def resolved(self, found: Sequence[str]) -> Self:
        """Return the layout for the arrays' types, ranks, labels and features."""
        parts = [text.split(" ", 2) for text in found]
        dtypes = [rest[0] for what, *rest in parts if what == _DTYPE]
        if len(dtypes) > 1:
            got = " and ".join(dtypes)
            raise ValueError(f"dtype must be the same in all arrays, got {got}: convert them")
        types = {rest[1]: rest[0] for what, *rest in parts if what == _TENSOR}
        if len(types) < sum(what == _TENSOR for what, *_ in parts):
            got = " and ".join(" ".join(rest) for what, *rest in parts if what == _TENSOR)
            raise ValueError(f"arrays of one name must have one dtype, got {got}: convert them")
        dtypes += [types[name] for name in self.tensors if name in types]
        labels = {Kind(rest[0]) for what, *rest in parts if what == _LABEL}
        others = {rest[1]: Kind(rest[0]) for what, *rest in parts if what == _FEATURE}
        if len(labels) > 1 or len(others) < sum(what == _FEATURE for what, *_ in parts):
            raise ValueError("arrays of one name must hold text or numbers, got both: convert them")
        ranks = {int(rest[0]) for what, *rest in parts if what == _RANK}
        return replace(
            self,
            dtype=" ".join(dtypes),
            pictures=ranks <= {2, 3},
            label=next(iter(labels), None),
            others=tuple(sorted(others.items())),
        )

    def classes_of(self, sample: Sample) -> list[int | str]:
        """Return the label of an item, if it has one."""
        label = _FIELDS.decode(sample.fields).label
        return [] if label is None else [label]

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's estimated size; features of other arrays are its largest error."""
        return _BYTES_BESIDE_ARRAY + sum(b.read_bytes for b in sample.blobs) + len(sample.fields)

    def build(self, sample: Sample, images: Sequence[EncodedImage], labels: Labels) -> Built:
        """Return the Example's values."""
        fields = _FIELDS.decode(sample.fields)
        items = zip(self._item_keys, fields.tensors, images, strict=True)
        values = {key: (Kind.BYTES, [self._values(of, i.data)]) for key, of, i in items}
        ids: list[int] = []
        if isinstance(fields.label, str):
            ids = [labels[fields.label].id]
        elif fields.label is not None:
            ids = [fields.label]
        features: FeatureValues = {
            **({} if self.tensors else self._shape(fields.shape)),
            **({"label": (Kind.INT64, ids)} if ids else {}),
            **{name: _value(fields.features[name], kind) for name, kind in self.others},
            **values,
        }
        return Built(features=features, dropped=[], repairs=[], labels=ids)

    def _values(self, item: NamedTensor, data: bytes) -> bytes:
        if item.big_endian:
            import numpy as np  # few arrays need it here

            _, value_bytes = TENSOR_TYPES[item.dtype]
            data = np.frombuffer(data, f">u{value_bytes}").astype(f"<u{value_bytes}").tobytes()
        is_tensor = self.encoding is Encoding.TENSOR
        return serialize_tensor(item.shape, item.dtype, data) if is_tensor else data

    def _shape(self, shape: tuple[int, ...]) -> FeatureValues:
        if not self.pictures:
            return {"shape": (Kind.INT64, shape)}
        lengths = (*shape, 1)[:3]
        return {feature.key: (Kind.INT64, [n]) for feature, n in zip(_SHAPE, lengths, strict=True)}


def _value(value: Scalar, kind: Kind) -> tuple[Kind, list]:
    return kind, [value.encode() if isinstance(value, str) else value]
