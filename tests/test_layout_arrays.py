"""The layout of arrays as tensors."""

import numpy as np
import pytest

from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.fields import RAW, ArrayFields, EncodedImage
from beam_tfrec.schemas.layouts import labels_by_category
from beam_tfrec.schemas.layouts.arrays import ArraysLayout, Encoding, found_in
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Blob, Sample, pack
from beam_tfrec.schemas.tensors import TENSOR_TYPES, encode_tensor, serialize_tensor

LABELS = labels_by_category([Label(0, "cat"), Label(1, "dog")])


def built(layout: ArraysLayout, fields: ArrayFields, data: bytes) -> dict:
    sample = Sample("train", "0", 0, (Blob("train", "x.npy", length=len(data)),), pack(fields))
    image = EncodedImage("x.npy", data, "00", RAW)
    made = layout.resolved(sorted(found_in(fields))).build(sample, [image], LABELS)
    return dict(made.features)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 4, 3), {"height": [2], "width": [4], "depth": [3]}),
        ((2, 4), {"height": [2], "width": [4], "depth": [1]}),
        ((), {"shape": []}),
        ((2, 1, 2, 2), {"shape": [2, 1, 2, 2]}),
    ],
)
def test_items_have_the_keys_of_the_tutorial(shape: tuple[int, ...], expected: dict) -> None:
    values = np.ones(shape, np.float32)
    features = built(ArraysLayout(), ArrayFields(shape, "float32", label=7), values.tobytes())
    assert features.pop("raw_image") == (Kind.BYTES, [encode_tensor(values)])
    assert features.pop("label") == (Kind.INT64, [7])
    assert {key: [*lengths] for key, (_, lengths) in features.items()} == expected
    assert "label" not in built(ArraysLayout(), ArrayFields(shape, "float32"), values.tobytes())


@pytest.mark.parametrize("dtype", TENSOR_TYPES)
@pytest.mark.parametrize("encoding", Encoding)
def test_big_endian_values_are_swapped(dtype: str, encoding: Encoding) -> None:
    values = np.arange(6).reshape(2, 3).astype("uint16" if dtype == "bfloat16" else dtype)
    swapped = values.astype(values.dtype.newbyteorder(">")).tobytes()
    features = built(ArraysLayout(encoding), ArrayFields((2, 3), dtype, True), swapped)
    expected = values.tobytes()
    if encoding is Encoding.TENSOR:
        expected = serialize_tensor((2, 3), dtype, expected)
    assert features["raw_image"] == (Kind.BYTES, [expected])


def test_other_arrays_become_features() -> None:
    fields = ArrayFields((1, 1), "uint8", features={"age": 7, "dose": 0.5, "site": "Ulm"})
    features = built(ArraysLayout(), fields, b"\1")
    assert features["age"] == (Kind.INT64, [7])
    assert features["dose"] == (Kind.FLOAT, [0.5])
    assert features["site"] == (Kind.BYTES, [b"Ulm"])


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (["dtype int8", "dtype uint8"], "dtype must be the same in all arrays, got int8 and uint8"),
        (["label bytes", "label int64"], "arrays of one name must hold text or numbers"),
        (["feature bytes a", "feature int64 a"], "arrays of one name must hold text or numbers"),
    ],
)
def test_refuses_arrays_that_differ(found: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArraysLayout().resolved(found)
