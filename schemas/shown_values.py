"""Values of records as people read them: bounded, escaped, images and tensors by what they are."""

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from schemas.faults import printable
from schemas.tensors import BFLOAT16, TENSOR_TYPES

MAX_VALUES = 8
"""Of a list; what is beyond is counted alone."""
MAX_CHARACTERS = 80
"""Of a text."""

_HEX_BYTES = 16
_TYPES = {number: (name, size) for name, (number, size) in TENSOR_TYPES.items()}
_FORMATS = {
    "float32": "f",
    "float64": "d",
    "float16": "e",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "bool": "?",
}
_MAX_VARINT_BYTES = 10
_TYPE, _SHAPE, _CONTENT, _DIMENSION, _SIZE = 0x08, 0x12, 0x22, 0x12, 0x08


class Tensor(NamedTuple):
    """A serialized `TensorProto`.

    Attributes:
        dtype: NumPy's name of its type, or `bfloat16`.
        shape: of it.
        content: its values, little-endian, in C order.
    """

    dtype: str
    shape: tuple[int, ...]
    content: bytes


def read_tensor(data: bytes) -> Tensor | None:
    """Return what `tf.io.serialize_tensor` wrote of numbers, None of any other bytes.

    >>> read_tensor(bytes.fromhex("0804120412020804220401020304"))
    Tensor(dtype='uint8', shape=(4,), content=b'\\x01\\x02\\x03\\x04')
    """
    found = _read_header(data)
    return None if found is None else Tensor(found[0], found[1], data[found[2] :])


def tensor_shape(data: bytes) -> tuple[int, ...] | None:
    """Return the shape of what `read_tensor` would return, whose values are not copied.

    >>> tensor_shape(bytes.fromhex("0804120412020804220401020304"))
    (4,)
    """
    found = _read_header(data)
    return None if found is None else found[1]


def _read_header(data: bytes) -> tuple[str, tuple[int, ...], int] | None:
    """Return type and shape of a serialized tensor, and where its values begin."""
    try:
        number, at = _varint(data, _expect(data, 0, _TYPE))
        size, at = _varint(data, _expect(data, at, _SHAPE))
        shape, end = [], at + size
        while at < end:
            length, at = _dimension(data, at)
            shape.append(length)
        if at != end or number not in _TYPES:
            return None
        size = 0
        if at < len(data):
            size, at = _varint(data, _expect(data, at, _CONTENT))
    except (IndexError, ValueError):
        return None
    dtype, value_bytes = _TYPES[number]
    if at + size != len(data) or math.prod(shape) * value_bytes != size:
        return None
    return dtype, tuple(shape), at


def _dimension(data: bytes, at: int) -> tuple[int, int]:
    """Return a dimension's length and where the next begins."""
    size, at = _varint(data, _expect(data, at, _DIMENSION))
    if not size:
        return 0, at
    end = at + size
    length, at = _varint(data, _expect(data, at, _SIZE))
    if at != end:
        raise ValueError("a dimension with a name")
    return length, at


def _expect(data: bytes, at: int, tag: int) -> int:
    if data[at] != tag:
        raise ValueError("another field")
    return at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("no end")


def show_tensor(tensor: Tensor) -> str:
    """Return a tensor's type, shape and first values.

    >>> show_tensor(Tensor("uint8", (2, 2), bytes([1, 2, 3, 4])))
    'tensor uint8 [2, 2]: 1, 2, 3, 4'
    """
    shape = ", ".join(map(str, tensor.shape))
    return f"tensor {tensor.dtype} [{shape}]: {show_numbers(_first_values(tensor), _count(tensor))}"


def _count(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def _first_values(tensor: Tensor) -> list[float]:
    count = min(_count(tensor), MAX_VALUES)
    if tensor.dtype == BFLOAT16:
        halves = struct.unpack_from(f"<{count}H", tensor.content)
        return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]
    return list(struct.unpack_from(f"<{count}{_FORMATS[tensor.dtype]}", tensor.content))


def show_numbers(values: Sequence[float], count: int) -> str:
    """Return the first numbers of so many.

    >>> show_numbers([0.5, 1.25], 2), show_numbers(range(20), 20)
    ('0.5, 1.25', '0, 1, 2, 3, 4, 5, 6, 7, ... (20 values)')
    """
    shown = ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in values[:MAX_VALUES])
    if count > MAX_VALUES:
        return f"{shown}, ... ({count} values)"
    return shown or "no values"


def show_bytes(value: bytes) -> str:
    r"""Return bytes that are no image as text where they are that, else in hexadecimal.

    >>> show_bytes(b"a \xc3\xa9"), show_bytes(b"\xff\x00"), show_bytes(b"")
    ("'a \\xe9'", '2 bytes: ff 00', "''")
    """
    try:
        text = value[: 4 * MAX_CHARACTERS].decode()
    except UnicodeDecodeError as error:
        if len(value) <= 4 * MAX_CHARACTERS or error.start < 4 * MAX_CHARACTERS - 4:
            return _show_hex(value)
        text = value[: error.start].decode()
    if any(ord(character) < 32 and character not in "\t\r\n" for character in text):
        return _show_hex(value)
    if len(text) <= MAX_CHARACTERS and len(value) <= 4 * MAX_CHARACTERS:
        return f"'{printable(text)}'"
    return f"'{printable(text[:MAX_CHARACTERS])}'... ({len(value)} bytes)"


def _show_hex(value: bytes) -> str:
    more = " ..." if len(value) > _HEX_BYTES else ""
    size = "1 byte" if len(value) == 1 else f"{len(value)} bytes"
    return f"{size}: {value[:_HEX_BYTES].hex(' ')}{more}"


def megabytes(size: int) -> str:
    """Return a size in bytes as megabytes.

    >>> megabytes(118_300_000), megabytes(1_500_000)
    ('118 MB', '1.5 MB')
    """
    return f"{size / 1e6:.0f} MB" if size >= 10_000_000 else f"{size / 1e6:.1f} MB"


def bytes_text(size: float) -> str:
    """Return a size in bytes, three digits of it, in decimal units.

    >>> [bytes_text(n) for n in (0, 999, 1000, 152_345, 10**8, 2 * 10**12, 3 * 10**15)]
    ['0 B', '999 B', '1 kB', '152 kB', '100 MB', '2 TB', '3,000 TB']
    """
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 0.9995 * 10**power:
            value = size / 10**power
            return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"
    return f"{size:.0f} B"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "record"), counted(750, "record")
    ('1 record', '750 records')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
