"""The header of a `.npy` file: what an array's values are, and where in the file they stand.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1.0 to 3.0.
Nothing is unpickled, and nothing is evaluated but the literal that a header is.
"""

import ast
import math
import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from schemas.tensors import BFLOAT16, TENSOR_TYPES

MAX_HEADER_BYTES = 10_000
"""As NumPy has it: a larger one is no array's, and could exhaust the parser."""

HEAD_BYTES = MAX_HEADER_BYTES + 12
"""From so many bytes of a file's beginning its header can be read."""

TEXT, BYTES = "text", "bytes"
"""Values of a fixed number of characters, of four bytes each, or of bytes."""

NPY_TEXT_TYPES = frozenset({TEXT, BYTES})
"""Types of labels alone: no tensor of theirs is written."""

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}  # of the header's length, by version
_DESCR = re.compile(r"([<>|=]?)([a-zA-Z])([0-9]{0,9})(\[.*\])?", re.ASCII)
_KEYS = {"descr", "fortran_order", "shape"}
_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "b1": "bool",
        "f2": "float16",
        "f4": "float32",
        "f8": "float64",
        **{f"u{size}": f"uint{8 * size}" for size in (1, 2, 4, 8)},
        **{f"i{size}": f"int{8 * size}" for size in (1, 2, 4, 8)},
    }
)
_BITS = "V2"  # as NumPy calls bfloat16, which it does not know, and any other two bytes


class NpyHeader(msgspec.Struct, frozen=True, array_like=True):
    """What the header of an array says.

    Attributes:
        dtype: one of `TENSOR_TYPES`, or `TEXT` or `BYTES`.
        value_bytes: of a value.
        shape: of the array.
        start: where its values begin, in C order, in the file's bytes.
        big_endian: whether values of several bytes have their highest one first.
    """

    dtype: str
    value_bytes: int
    shape: tuple[int, ...]
    start: int
    big_endian: bool = False

    @property
    def end(self) -> int:
        """Where the values end in the file's bytes."""
        return self.start + self.value_bytes * math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """How many bytes an item along the first axis has."""
        return self.value_bytes * math.prod(self.shape[1:])


def parse_npy_header(data: bytes, dtype: str | None = None) -> NpyHeader:
    """Return what the header says that a file begins with.

    Args:
        data: the file's first `HEAD_BYTES` or more, or all of it.
        dtype: `bfloat16`, what values of two bytes are that have no type; None for no such values.

    Raises:
        ValueError: when it is no header of an array that can be read, with the remedy.
    """
    start, content = _content(data)
    if content.keys() != _KEYS:
        raise _not_npy(f"a header of {sorted(map(str, content))}")
    name, value_bytes, big_endian = _value_type(content["descr"], dtype)
    shape, fortran_order = content["shape"], content["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise _not_npy(f"a shape of {str(shape)[:80]!r}")
    if not isinstance(fortran_order, bool):
        raise _not_npy(f"a fortran_order of {str(fortran_order)[:80]!r}")
    if max((value_bytes, *shape)) >= 2**63 or value_bytes * math.prod(shape) >= 2**63:
        raise _not_npy(f"a shape of {str(shape)[:80]!r}")
    if fortran_order and sum(length != 1 for length in shape) > 1 and 0 not in shape:
        raise ValueError(
            "an array must be in C order, its items one behind the other, got Fortran order:"
            " save numpy.ascontiguousarray of it"
        )
    return NpyHeader(name, value_bytes, shape, start, big_endian)


def _content(data: bytes) -> tuple[int, dict]:
    """Return where values begin, and the header as the dictionary that it is the literal of."""
    version = data[6] if len(data) > len(_MAGIC) + 1 else 0
    if not data.startswith(_MAGIC) or version not in _LENGTH_BYTES:
        raise _not_npy(f"a file that starts with {data[:8].hex() or 'nothing'}")
    begin = 8 + _LENGTH_BYTES[version]
    length = int.from_bytes(data[8:begin], "little")
    if length > MAX_HEADER_BYTES:
        raise _not_npy(f"a header of {length} bytes")
    header = data[begin : begin + length]
    if len(data) < begin or len(header) < length:
        raise _not_npy("a header that is cut off")
    try:
        content = ast.literal_eval(header.decode("utf-8" if version > 2 else "latin-1").strip())
        repr(content)  # for what is told of it: numbers of too many digits have none
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise _not_npy("a header that is no literal") from None
    if not isinstance(content, dict):
        raise _not_npy(f"a header of type {type(content).__name__}")
    return begin + length, content


def _value_type(descr: object, dtype: str | None) -> tuple[str, int, bool]:
    """Return the name of a type, its bytes a value, and whether it is big-endian."""
    match = _DESCR.fullmatch(descr) if isinstance(descr, str) else None
    if match is None or match[4]:
        what = f"fields {descr!r}" if isinstance(descr, list | tuple) else repr(descr)
        is_time = match is not None and match[2] in "mM"
        remedy = "save values.astype('int64')" if is_time else "save an array of each field"
        raise _unknown_type(what[:80], remedy)
    order, code = match[1], match[2] + match[3]
    is_big = order == ">"
    if match[2] == "O":
        raise _unknown_type("Python objects, which are pickled", "save an array of numbers")
    if code == _BITS:
        if dtype != BFLOAT16:
            raise _unknown_type(f"{descr!r}", "give --dtype bfloat16 if that is what it is")
        return BFLOAT16, 2, is_big
    if match[2] in "US" and match[3]:
        width = 4 if match[2] == "U" else 1
        return TEXT if match[2] == "U" else BYTES, width * int(match[3]), is_big
    if code not in _TYPES:
        raise _unknown_type(repr(descr), "convert it")
    name = _TYPES[code]
    return name, TENSOR_TYPES[name][1], is_big


def _unknown_type(what: str, remedy: str) -> ValueError:
    return ValueError(
        f"an array must be of bool, integers, floats or bfloat16, got {what}: {remedy}"
    )


def _not_npy(what: str) -> ValueError:
    return ValueError(f"a .npy file must be as NumPy saves one array, got {what}: save it again")
