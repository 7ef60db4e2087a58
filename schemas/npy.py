"""The header of a `.npy` file: the type and shape of an array, and where its values begin.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1.0 to 3.0.
NumPy parses it; nothing is unpickled.
"""

import io
import math
import tokenize
from typing import TYPE_CHECKING

import msgspec

from schemas.tensors import BFLOAT16, TENSOR_TYPES

if TYPE_CHECKING:
    import numpy

MAX_HEADER_BYTES = 10_000
"""NumPy's own limit: the parser could run out of memory on a larger header."""

HEAD_BYTES = MAX_HEADER_BYTES + 12
"""The header can be read from this many bytes of a file's beginning."""

TEXT, BYTES = "text", "bytes"
"""Values of a fixed number of characters, of four bytes each, or of bytes."""

NPY_TEXT_TYPES = frozenset({TEXT, BYTES})
"""Types of labels alone: no tensor of theirs is written."""

_UNREADABLE = (
    ValueError,
    SyntaxError,
    TypeError,
    KeyError,
    MemoryError,
    RecursionError,
    tokenize.TokenError,
)


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
    """Return the header of a `.npy` file.

    Args:
        data: the file's first `HEAD_BYTES` or more, or all of it.
        dtype: `bfloat16`, the type of two-byte values without one; None where there are none.

    Raises:
        ValueError: when it is no header of an array that can be read, with the remedy.
    """
    from numpy.lib import format as npy_format  # takes a tenth of a second

    file = io.BytesIO(data)
    try:
        version = npy_format.read_magic(file)
        read = {
            (1, 0): npy_format.read_array_header_1_0,
            (2, 0): npy_format.read_array_header_2_0,
            (3, 0): npy_format.read_array_header_2_0,  # differs in names of fields alone
        }[version]
        shape, fortran_order, found = read(file, max_header_size=MAX_HEADER_BYTES)
    except _UNREADABLE as error:
        what = " ".join(str(error).split())[:120] or type(error).__name__
        raise _not_npy(f"a header that NumPy cannot read ({what})") from None
    name, value_bytes = _value_type(found, dtype)
    sizes = (value_bytes, *shape)
    if any(type(n) is not int or n < 0 for n in shape) or max(math.prod(sizes), *sizes) >= 2**63:
        raise _not_npy("a shape that no array can have")
    if fortran_order and sum(length != 1 for length in shape) > 1 and 0 not in shape:
        raise ValueError(
            "an array must be in C order, its items one after the other, got Fortran order:"
            " save numpy.ascontiguousarray of it"
        )
    return NpyHeader(name, value_bytes, shape, file.tell(), found.byteorder == ">")


def _value_type(found: "numpy.dtype", dtype: str | None) -> tuple[str, int]:
    """Return the name of a type, and its bytes a value."""
    what = repr(found.str)
    if found.fields is not None or found.subdtype is not None:
        raise _unknown_type(f"fields {found.descr}"[:80], "save an array of each field")
    if found.kind == "O":
        raise _unknown_type("Python objects, which are pickled", "save an array of numbers")
    if found.kind in "mM":
        raise _unknown_type(what, "save values.astype('int64')")
    if found.str == "|V2":
        if dtype != BFLOAT16:
            raise _unknown_type(what, "give --dtype bfloat16 if that is what it is")
        return BFLOAT16, 2
    if found.kind in "US":
        return TEXT if found.kind == "U" else BYTES, found.itemsize
    if found.name not in TENSOR_TYPES:
        raise _unknown_type(what, "convert it")
    return found.name, found.itemsize


def _unknown_type(what: str, remedy: str) -> ValueError:
    return ValueError(
        f"an array must be of bool, integers, floats or bfloat16, got {what}: {remedy}"
    )


def _not_npy(what: str) -> ValueError:
    return ValueError(f"a .npy file must be as NumPy saves one array, got {what}: save it again")
