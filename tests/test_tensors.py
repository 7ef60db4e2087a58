"""Serialised tensors equal TensorFlow's."""

import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from beam_tfrec.schemas.tensors import (
    TENSOR_TYPES,
    NpyHeader,
    Tensor,
    encode_tensor,
    parse_npy_header,
    read_tensor,
    serialize_tensor,
)
from tests.array_runs import npy_bytes


def serialized(values: np.ndarray, name: str) -> bytes:
    import tensorflow as tf

    native = values.astype(values.dtype.newbyteorder("="))
    if name == "bfloat16":
        return tf.io.serialize_tensor(tf.bitcast(native, tf.bfloat16)).numpy()
    return tf.io.serialize_tensor(tf.constant(native)).numpy()


@pytest.mark.parametrize("name", TENSOR_TYPES)
@given(data=st.data())
def test_bytes_equal_those_of_tensorflow(name: str, data: st.DataObject) -> None:
    shapes = arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
    bits = np.dtype("uint16" if name == "bfloat16" else name)
    values = data.draw(arrays.arrays(bits, shapes))
    if name != "bfloat16":
        assert encode_tensor(values) == serialized(values, name)
    little = values.astype(values.dtype.newbyteorder("<")).tobytes()
    assert read_tensor(serialized(values, name)) == Tensor(name, values.shape, little)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(24, dtype=np.int32).reshape(2, 3, 4)[:, ::2, ::-1],
        np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
        np.arange(6, dtype=">f8")[::2],
    ],
)
def test_memory_order_does_not_matter(values: np.ndarray) -> None:
    assert encode_tensor(values) == serialized(values, values.dtype.name)


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (lambda: encode_tensor(np.zeros(2, "complex64")), "dtype must be one of float32, "),
        (lambda: encode_tensor(np.array([None])), "got object: convert it"),
        (lambda: serialize_tensor((4,), "int16", b"1234567"), "must have 8 bytes, got 7: give its"),
    ],
)
def test_bad_tensors_are_refused(encode: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        encode()  # type: ignore[operator]


def npy(header: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    data = header.encode("utf-8")
    form = "<H" if version[0] == 1 else "<I"
    size = len(data) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack(form, size) + data


@pytest.mark.parametrize("dtype", sorted(TENSOR_TYPES.keys() - {"bfloat16"}))
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3, 4), (1, 0, 5)])
def test_reads_what_numpy_writes(dtype: str, order: str, shape: tuple[int, ...]) -> None:
    values = np.zeros(shape, np.dtype(dtype).newbyteorder(order))
    data = npy_bytes(values)
    header = parse_npy_header(data)
    is_big = order == ">" and values.itemsize > 1
    assert header == NpyHeader(dtype, values.itemsize, shape, header.start, is_big)
    assert data[header.start : header.end] == values.tobytes()
    assert header.end == len(data)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (np.array(["cat", "a"]), None, ("text", 12, False)),
        (np.array(["cat"], ">U3"), None, ("text", 12, True)),
        (np.array([b"cat", b"a"]), None, ("bytes", 3, False)),
        (np.asfortranarray(np.zeros((3, 1))), None, ("float64", 8, False)),  # equal orders
        (np.zeros(4, "V2"), "bfloat16", ("bfloat16", 2, False)),
    ],
)
def test_reads_text_columns_and_bfloat16(
    values: np.ndarray, dtype: str | None, expected: tuple[str, int, bool]
) -> None:
    header = parse_npy_header(npy_bytes(values), dtype)
    assert (header.dtype, header.value_bytes, header.big_endian) == expected


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"
UNREADABLE = "must be as NumPy saves one array, got a header that NumPy cannot read"
NO_SHAPE = "must be as NumPy saves one array, got a shape that no array can have"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npy_bytes(np.array([None])), "got '|O': convert it"),
        (npy_bytes(np.zeros(2, [("a", "i4")])), "got '|V4': convert it"),
        (npy_bytes(np.zeros(2, "c8")), "got '<c8': convert it"),
        (npy_bytes(np.zeros(2, "M8[s]")), "got '<M8[s]': convert it"),
        (npy_bytes(np.zeros(2, "V2")), "got '|V2': convert it, or give --dtype bfloat16 if"),
        (npy_bytes(np.zeros((3, 4), order="F")), "got Fortran: save it by ascontiguousarray"),
        (b"", UNREADABLE),
        (b"PK\3\4" + bytes(99), UNREADABLE),
        (npy(GOOD, (4, 0)), UNREADABLE),
        (npy(GOOD, length=10_001), UNREADABLE),
        (npy("__import__('os').getcwd()"), UNREADABLE),
        (npy("(" * 9_000), UNREADABLE),
        (npy("{'descr': '<f4'}"), UNREADABLE),
        (npy(GOOD.replace("(3,)", "(2**63,)")), UNREADABLE),
        (npy(GOOD.replace("(3,)", "(-3,)")), NO_SHAPE),
        (npy(GOOD.replace("3", str(2**62))), NO_SHAPE),
        (npy(GOOD.replace("3", "0x" + "f" * 5_000)), NO_SHAPE),
    ],
)
def test_refuses_other_arrays_and_files(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_npy_header(data)
