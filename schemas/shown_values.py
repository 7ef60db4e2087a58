"""Values of records as people read them: bounded, escaped, images and tensors by what they are."""

import math
from collections.abc import Sequence

from schemas.faults import printable
from schemas.tensors import BFLOAT16, Tensor

MAX_VALUES = 8
"""Of a list; what is beyond is counted alone."""
MAX_CHARACTERS = 80
"""Of a text."""

_HEX_BYTES = 16


def show_tensor(tensor: Tensor) -> str:
    """Return a tensor's type, shape and first values.

    >>> show_tensor(Tensor("uint8", (2, 2), bytes([1, 2, 3, 4])))
    'tensor uint8 [2, 2]: 1, 2, 3, 4'
    """
    shape = ", ".join(map(str, tensor.shape))
    count = math.prod(tensor.shape)
    values = show_numbers(_first_values(tensor, min(count, MAX_VALUES)), count)
    return f"tensor {tensor.dtype} [{shape}]: {values}"


def _first_values(tensor: Tensor, count: int) -> list[float]:
    import numpy as np  # late: few records hold tensors

    if tensor.dtype != BFLOAT16:
        return np.frombuffer(
            tensor.content, np.dtype(tensor.dtype).newbyteorder("<"), count
        ).tolist()
    halves = np.frombuffer(tensor.content, "<u2", count).astype("<u4")
    return (halves << 16).view("<f4").tolist()


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
