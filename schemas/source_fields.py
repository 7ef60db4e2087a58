"""What samples of classes, array items and table rows carry; their layouts open it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from schemas.columns import Cell, text_of
from schemas.samples import Sample, pack


class ClassFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The class of an image.

    Attributes:
        class_name: as its source has it, such as a folder's name.
    """

    class_name: str


Scalar = int | float | str


class ArrayFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item of an array, but for its values.

    Attributes:
        shape: of the item.
        dtype: one of `TENSOR_TYPES`.
        big_endian: whether its values have their highest byte first.
        label: a number, or the name of its class; None where there are no labels.
        features: values of other arrays at its row, by their names.
    """

    shape: tuple[int, ...]
    dtype: str
    big_endian: bool = False
    label: int | str | None = None
    features: dict[str, Scalar] = {}


_BYTES_A_STEP = 6  # beyond its values: the lengths of its Feature, and of the list in there
LARGE_ROW_BYTES = 256
"""Larger rows travel as payloads: what all rows hold is in memory where a run is in process."""


class RowFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of a table, or its size where it is the sample's payload.

    Attributes:
        row_bytes: size of the packed cells, and of what sequences need beyond that.
        cells: of every column that is not missing, by name; None for a payload.
    """

    row_bytes: int
    cells: dict[str, Any] | None = None


_FIELDS = msgspec.msgpack.Decoder(RowFields)
_CELLS = msgspec.msgpack.Decoder(dict[str, Any])


def fields_of_row(
    cells: dict[str, Cell], sequence_columns: Sequence[str] = ()
) -> tuple[bytes, bytes]:
    """Return (fields, payload) of a sample with these cells; columns of sequences have steps."""
    packed = pack(cells)
    lists = (cells[name] for name in sequence_columns if isinstance(cells.get(name), list))
    row_bytes = len(packed) + _BYTES_A_STEP * sum(map(len, lists))
    if len(packed) <= LARGE_ROW_BYTES:
        return pack(RowFields(row_bytes, cells)), b""
    return pack(RowFields(row_bytes)), packed


def row_of(sample: Sample) -> dict[str, Cell]:
    """Return the cells of a sample that has its payload."""
    cells = _FIELDS.decode(sample.fields).cells
    return _CELLS.decode(sample.payload) if cells is None else cells


def row_bytes(sample: Sample) -> int:
    """Return about the size of a sample's row, with or without its payload."""
    return _FIELDS.decode(sample.fields).row_bytes


def labels_of(cells: Mapping[str, Cell], columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a row's classes, in the order of the columns, each once.

    >>> labels_of({"a": "cat", "b": [7, "cat"]}, ("b", "a"))
    ('7', 'cat')
    """
    names: dict[str, None] = {}
    for column in columns:
        cell = cells.get(column)
        values = cell if isinstance(cell, list) else [] if cell is None else [cell]
        names |= dict.fromkeys(name for value in values if (name := text_of(value).strip()))
    return tuple(names)
