"""Arrays as bytes: `TensorProto`s, and the headers of `.npy` files.

The `TensorProto`s have the form that `tf.io.serialize_tensor` writes and `tf.io.parse_tensor`
reads. Source of the format: tensorflow/core/framework/{tensor,tensor_shape,types}.proto. Values
are in `tensor_content`, in C order and little-endian, as TensorFlow writes them on little-endian
machines.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from beam_tfrec.schemas.example import varint

if TYPE_CHECKING:
    import numpy

BFLOAT16 = "bfloat16"
"""The one type that NumPy lacks. Arrays hold its bits as uint16."""

TENSOR_TYPES: Mapping[str, tuple[int, int]] = {
    "float32": (1, 4),
    "float64": (2, 8),
    "int32": (3, 4),
    "uint8": (4, 1),
    "int16": (5, 2),
    "int8": (6, 1),
    "int64": (9, 8),
    "bool": (10, 1),
    BFLOAT16: (14, 2),
    "uint16": (17, 2),
    "float16": (19, 2),
    "uint32": (22, 4),
    "uint64": (23, 8),
}
"""By NumPy's name of a type: its number in TensorFlow's `DataType`, and its bytes per value."""

MAX_HEADER_BYTES = 10_000
"""NumPy's own limit. Its parser could run out of memory on a larger header."""

HEAD_BYTES = MAX_HEADER_BYTES + 12
"""Number of bytes at the start of a file that hold any header."""

TEXT, BYTES = "text", "bytes"
"""Types of fixed-length values: characters of four bytes each, or bytes."""

NPY_TEXT_TYPES = frozenset({TEXT, BYTES})
"""Types that only labels can have; they are never written as tensors."""

_TYPE_NAMES = {number: name for name, (number, _) in TENSOR_TYPES.items()}

_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"

_DIMENSION = re.compile(rb"\x12.(?:\x08(%b))?" % _VARINT, re.DOTALL)

_HEADER = re.compile(
    rb"\x08(%b)\x12%b((?:\x12.(?:\x08%b)?)*)(?:\x22%b)?" % ((_VARINT,) * 4), re.DOTALL
)


class Tensor(NamedTuple):
    """A serialized `TensorProto`.

    Attributes:
        dtype: NumPy's name of the type, or `bfloat16`.
        shape: length of each axis.
        content: the values, little-endian, in C order.
    """

    dtype: str
    shape: tuple[int, ...]
    content: bytes | memoryview


class NpyHeader(msgspec.Struct, frozen=True, array_like=True):
    """Header of a `.npy` file.

    Attributes:
        dtype: one of `TENSOR_TYPES`, or `TEXT` or `BYTES`.
        value_bytes: size of one value.
        shape: length of each axis.
        start: offset in the file at which the values begin, in C order.
        big_endian: whether a value's highest byte comes first.
    """

    dtype: str
    value_bytes: int
    shape: tuple[int, ...]
    start: int
    big_endian: bool = False

    @property
    def end(self) -> int:
        """Offset in the file at which the values end."""
        return self.start + self.value_bytes * math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Size of one item along the first axis."""
        return self.value_bytes * math.prod(self.shape[1:])


def encode_tensor(values: "numpy.ndarray") -> bytes:
    """Return an array of any rank and memory order as a serialized `TensorProto`.

    Raises:
        ValueError: when TensorFlow has no such type.

    >>> import numpy
    >>> encode_tensor(numpy.array([1, 2, 3, 4], numpy.uint8)).hex()
    '0804120412020804220401020304'
    """
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return serialize_tensor(values.shape, values.dtype.name, little.tobytes())


def serialize_tensor(shape: Sequence[int], dtype: str, data: bytes) -> bytes:
    """Return a serialized `TensorProto`.

    Args:
        shape: length of each axis; empty for a scalar.
        dtype: one of `TENSOR_TYPES`.
        data: the values, little-endian, in C order.

    Raises:
        ValueError: when type, shape and data do not fit together.
    """
    return _tensor_header(shape, dtype, len(data)) + data


def read_tensor(data: bytes) -> Tensor | None:
    """Return a tensor of numbers that `tf.io.serialize_tensor` wrote; None for other bytes.

    Its values are not copied.

    >>> tensor = read_tensor(bytes.fromhex("0804120412020804220401020304"))
    >>> tensor.dtype, tensor.shape, bytes(tensor.content)
    ('uint8', (4,), b'\\x01\\x02\\x03\\x04')
    """
    match = _HEADER.match(data)
    dtype = _TYPE_NAMES.get(_number(match[1])) if match else None
    if match is None or dtype is None:
        return None
    shape = tuple(_number(size) for size in _DIMENSION.findall(match[2]))
    content = memoryview(data)[match.end() :]
    try:
        expected = _tensor_header(shape, dtype, len(content))
    except ValueError:
        return None
    return Tensor(dtype, shape, content) if expected == match[0] else None


def tensor_values(tensor: Tensor, count: int = -1) -> "numpy.ndarray":
    """Return a tensor's first `count` values, or all of them. Values of bfloat16 become float32.

    >>> tensor_values(Tensor("bfloat16", (2,), bytes.fromhex("803f0040"))).tolist()
    [1.0, 2.0]
    """
    import numpy

    if tensor.dtype != BFLOAT16:
        return numpy.frombuffer(tensor.content, numpy.dtype(tensor.dtype).newbyteorder("<"), count)
    return (numpy.frombuffer(tensor.content, "<u2", count).astype("<u4") << 16).view("<f4")


def is_picture(tensor: Tensor) -> bool:
    """Return whether a tensor can be shown: height x width, or height x width x 1 to 4 channels.

    >>> is_picture(Tensor("uint8", (2, 3, 3), b"")), is_picture(Tensor("uint8", (2, 3, 5), b""))
    (True, False)
    """
    sides, channels = tensor.shape[:2], tensor.shape[2:]
    has_pixels = len(sides) == 2 and all(sides) and channels in ((), (1,), (2,), (3,), (4,))
    return has_pixels and tensor.dtype != "bool"


def parse_npy_header(data: bytes, dtype: str | None = None) -> NpyHeader:
    """Return the header of a `.npy` file.

    Args:
        data: the file's first `HEAD_BYTES` or more, or the whole file.
        dtype: `bfloat16` if two-byte values without a type (`|V2`) are bfloat16; else None.

    Raises:
        ValueError: when the header is damaged or describes an unsupported array. The message says
            what to do.
    """
    from numpy.lib import format as npy_format  # takes a tenth of a second

    file = io.BytesIO(data)
    try:
        version = npy_format.read_magic(file)
        read = {
            (1, 0): npy_format.read_array_header_1_0,
            (2, 0): npy_format.read_array_header_2_0,
            (3, 0): npy_format.read_array_header_2_0,  # only differs in the encoding of field names
        }[version]
        shape, fortran_order, found = read(file, max_header_size=MAX_HEADER_BYTES)
    except Exception as error:  # Python's parser raises many types on hostile text
        what = " ".join(str(error).split())[:120] or type(error).__name__
        raise _not_npy(f"a header that NumPy cannot read ({what})") from None
    name, value_bytes = _value_type(found, dtype)
    sizes = (value_bytes, *shape)
    if any(type(n) is not int or n < 0 for n in shape) or max(math.prod(sizes), *sizes) >= 2**63:
        raise _not_npy("a shape that no array can have")
    if fortran_order and sum(length != 1 for length in shape) > 1 and 0 not in shape:
        raise ValueError("an array must be in C order, got Fortran: save it by ascontiguousarray")
    return NpyHeader(name, value_bytes, shape, file.tell(), found.byteorder == ">")


def _tensor_header(shape: Sequence[int], dtype: str, data_bytes: int) -> bytes:
    """Return the bytes of a TensorProto before its values."""
    if dtype not in TENSOR_TYPES:
        raise ValueError(f"dtype must be one of {', '.join(TENSOR_TYPES)}, got {dtype}: convert it")
    number, value_bytes = TENSOR_TYPES[dtype]
    if (size_bytes := value_bytes * math.prod(shape)) != data_bytes:
        what = f"data of a {dtype} tensor of shape {tuple(shape)} must have {size_bytes} bytes"
        raise ValueError(f"{what}, got {data_bytes}: give its values in C order")
    dimensions = b"".join(map(_dimension, shape))
    header = b"\x08" + varint(number) + b"\x12" + varint(len(dimensions)) + dimensions
    return header + b"\x22" + varint(data_bytes) if data_bytes else header


def _dimension(length: int) -> bytes:
    size = b"\x08" + varint(length) if length else b""
    return b"\x12" + varint(len(size)) + size


def _number(encoded: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded))


def _value_type(found: "numpy.dtype", dtype: str | None) -> tuple[str, int]:
    """Return the name of a type, and its bytes per value."""
    if found.str == "|V2" and dtype == BFLOAT16:
        return BFLOAT16, 2
    if found.kind in "US":
        return TEXT if found.kind == "U" else BYTES, found.itemsize
    if found.name not in TENSOR_TYPES:
        what = f"an array must be of bool, integers, floats or bfloat16, got {found.str!r}"
        raise ValueError(f"{what}: convert it, or give --dtype bfloat16 if that is what it is")
    return found.name, found.itemsize


def _not_npy(what: str) -> ValueError:
    return ValueError(f"a .npy file must be as NumPy saves one array, got {what}: save it again")
