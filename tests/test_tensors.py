"""Serialised tensors equal TensorFlow's."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from schemas.tensors import TENSOR_TYPES, encode_tensor, encode_tensor_parts

GOLDEN = bytes.fromhex("08 04 12 04 12 02 08 04 22 04 01 02 03 04")


def bits(name: str) -> np.dtype:
    """Return NumPy's type that holds values of a tensor's type."""
    return np.dtype("uint16" if name == "bfloat16" else name)


def serialized(values: np.ndarray, name: str) -> bytes:
    import tensorflow as tf

    native = values.astype(values.dtype.newbyteorder("="))
    if name == "bfloat16":
        return tf.io.serialize_tensor(tf.bitcast(native, tf.bfloat16)).numpy()
    return tf.io.serialize_tensor(tf.constant(native)).numpy()


def test_a_tensor_has_these_bytes() -> None:
    assert encode_tensor(np.array([1, 2, 3, 4], np.uint8)) == GOLDEN
    assert encode_tensor_parts([4], "uint8", b"\1\2\3\4") == [GOLDEN[:10], GOLDEN[10:]]


@pytest.mark.parametrize("name", TENSOR_TYPES)
@given(data=st.data())
def test_bytes_equal_tensorflow_s(name: str, data: st.DataObject) -> None:
    shapes = arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
    values = data.draw(arrays.arrays(bits(name), shapes))
    assert encode_tensor(values, name) == serialized(values, name)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(24, dtype=np.int32).reshape(2, 3, 4)[:, ::2, ::-1],
        np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
        np.arange(6, dtype=">i4"),
        np.arange(6, dtype=">f8")[::2],
        np.broadcast_to(np.uint8(7), (3, 2)),
    ],
    ids=["strided", "fortran", "big endian", "big endian, strided", "broadcast"],
)
def test_memory_order_does_not_matter(values: np.ndarray) -> None:
    assert encode_tensor(values) == serialized(values, values.dtype.name)


def test_bfloat16_comes_as_its_bits_or_as_what_tensorflow_calls_it() -> None:
    import tensorflow as tf

    theirs = tf.constant([1.5, -2.0], tf.bfloat16)
    expected = tf.io.serialize_tensor(theirs).numpy()
    assert encode_tensor(theirs.numpy().view(np.uint16), "bfloat16") == expected
    assert encode_tensor(theirs.numpy()) == expected


def test_data_is_handed_on_uncopied() -> None:
    data = bytes(range(6))
    assert encode_tensor_parts((2, 3), "uint8", data)[1] is data


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (
            lambda: encode_tensor(np.zeros(2, "float32"), "float64"),
            "dtype must be that of the array, float32, got float64: convert the array",
        ),
        (lambda: encode_tensor(np.zeros(2, "complex64")), "dtype must be one of float32, "),
        (lambda: encode_tensor(np.array([None])), "got object: convert it"),
        (
            lambda: encode_tensor_parts((2, 2), "int16", b"1234567"),
            "data of a int16 tensor of shape (2, 2) must have 8 bytes, got 7: give its values",
        ),
    ],
)
def test_bad_tensors_are_refused(encode: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        encode()  # type: ignore[operator]
