"""Headers of `.npy` files."""

import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from schemas.tensors import HEAD_BYTES, NpyHeader, parse_npy_header
from tests.array_runs import npy_bytes

NUMBERS = [
    "bool",
    "float16",
    "float32",
    "float64",
    *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)),
]


def npy(header: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    """Return a file that begins with any header."""
    data = header.encode("utf-8")
    form = "<H" if version[0] == 1 else "<I"
    size = len(data) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack(form, size) + data


@pytest.mark.parametrize("dtype", NUMBERS)
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


@given(arrays.arrays(st.sampled_from([np.dtype(n) for n in NUMBERS]), arrays.array_shapes()))
def test_items_are_where_the_header_says(values: np.ndarray) -> None:
    data = npy_bytes(np.ascontiguousarray(values))
    header = parse_npy_header(data[:HEAD_BYTES])
    for row, item in enumerate(values):
        start = header.start + row * header.item_bytes
        assert data[start : start + header.item_bytes] == item.tobytes()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array(["cat", "a"]), ("text", 12, False)),
        (np.array(["cat"], ">U3"), ("text", 12, True)),
        (np.array([b"cat", b"a"]), ("bytes", 3, False)),
        (np.asfortranarray(np.zeros((3, 1))), ("float64", 8, False)),  # one order or the other
    ],
)
def test_reads_text_and_columns(values: np.ndarray, expected: tuple[str, int, bool]) -> None:
    header = parse_npy_header(npy_bytes(values))
    assert (header.dtype, header.value_bytes, header.big_endian) == expected


def test_two_byte_values_are_bfloat16_on_request() -> None:
    data = npy_bytes(np.zeros(4, "V2"))
    assert parse_npy_header(data, "bfloat16").dtype == "bfloat16"
    with pytest.raises(ValueError, match="give --dtype bfloat16 if that is what it is"):
        parse_npy_header(data)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([None]), "got Python objects, which are pickled: save an array of numbers"),
        (np.zeros(2, [("a", "i4")]), "got '|V4': convert it"),
        (np.zeros(2, "c8"), "got '<c8': convert it"),
        (np.zeros(2, "M8[s]"), "got '<M8[s]': convert it"),
        (np.zeros(2, "V3"), "got '|V3': convert it"),
        (np.zeros((3, 4), order="F"), "got Fortran order: save numpy.ascontiguousarray of it"),
    ],
)
def test_refuses_other_arrays(values: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_npy_header(npy_bytes(values))


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "a header that NumPy cannot read"),
        (b"\x93NUMPY", "a header that NumPy cannot read"),
        (b"PK\3\4" + bytes(99), "a header that NumPy cannot read"),
        (npy(GOOD, (4, 0)), "a header that NumPy cannot read"),
        (npy(GOOD)[:-1], "a header that NumPy cannot read"),
        (npy(GOOD, length=10_001), "a header that NumPy cannot read"),
        (npy("{"), "a header that NumPy cannot read"),
        (npy("__import__('os').getcwd()"), "a header that NumPy cannot read"),
        (npy("(" * 9_000), "a header that NumPy cannot read"),
        (npy("-" * 9_000 + "1"), "a header that NumPy cannot read"),
        (npy("[1]"), "a header that NumPy cannot read"),
        (npy("{'descr': '<f4'}"), "a header that NumPy cannot read"),
        (npy(GOOD.replace("(3,)", "[3]")), "a header that NumPy cannot read"),
        (npy(GOOD.replace("(3,)", "(-3,)")), "a shape that no array can have"),
        (npy(GOOD.replace("(3,)", "(True,)")), "a shape that no array can have"),
        (npy(GOOD.replace("(3,)", "(2**63,)")), "a header that NumPy cannot read"),
        (npy(GOOD.replace("3", str(2**62))), "a shape that no array can have"),
        (npy(GOOD.replace("(3,)", f"({2**40}, {2**40})")), "a shape that no array can have"),
        (npy(GOOD.replace("3", "0x" + "f" * 5_000)), "a shape that no array can have"),
        (npy(GOOD.replace("False", "0")), "a header that NumPy cannot read"),
    ],
)
def test_refuses_other_files(data: bytes, what: str) -> None:
    with pytest.raises(
        ValueError, match=f"must be as NumPy saves one array, got {re.escape(what)}"
    ):
        parse_npy_header(data)


@given(st.data())
def test_a_damaged_header_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(npy_bytes(np.zeros((3, 4), "<f4")))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 127))
        whole[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        header = parse_npy_header(bytes(whole))
    except ValueError as error:
        assert ": " in str(error)
    else:
        assert header.end >= header.start
