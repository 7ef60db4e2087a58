"""Tables: column types inferred from cells, conversion of cells, and names of table files.

Tables are read in pieces, once. `ColumnFacts` describes a column of a piece by two numbers; facts
of all pieces add up to the column's type.
"""

import contextlib
import functools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from beam_tfrec.schemas.features import Kind

BOOL, INT, BIG_INT, FLOAT, TEXT, LIST, NESTED = (1 << place for place in range(7))
"""Bits that describe a cell. A list has `LIST` and the bits of its values; a list of lists also has
`NESTED`. `BIG_INT` is an integer beyond int64, `TEXT` is text or bytes."""

Cell = Any
"""A bool, int, float, str or bytes, or a list of these; None for a missing cell.

In a column of sequences, a list may hold such lists.
"""

_INT64 = range(-(2**63), 2**63)
_INT64_CHARS = 20  # Python refuses to read whole numbers of thousands of digits
_BEYOND_FLOAT32 = 2.0**128 - 2.0**103
"""Smallest number that rounds to infinity in float32."""

_BOOLS = {"true": 1, "false": 0}
_SPELT_FLOATS = {"nan", "inf", "infinity"}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER_TEXT = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBER = re.compile(_NUMBER_TEXT)
_NOT_COUNTED = r"[+-]?0[0-9]|\+[0-9]+\Z"  # a postal code, an id or a phone number
_COUNTED = re.compile(rf"(?P<whole>-?(?:0|[1-9][0-9]*))|(?!{_NOT_COUNTED}){_NUMBER_TEXT}")
_TYPE = re.compile(r"(int64|float|bytes)((?:\[\]){0,2})(\?)?")
_KIND_OF_TYPE = {bool: BOOL, float: FLOAT, str: TEXT, bytes: TEXT}

PARQUET = "parquet"
FORMATS = (".csv", ".tsv", ".jsonl", f".{PARQUET}")
"""Extensions of table files, in lower case. A format's name is its extension without the dot."""

_DOT = re.compile(r"\.")
_GLOB = re.compile(r"[*?]")
_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class ColumnFacts(msgspec.Struct, frozen=True, array_like=True):
    """Facts about a column's cells in a piece of a table; see `add_facts`.

    Attributes:
        name: the column's name.
        kinds: bits of all cells, such as `INT | LIST`.
        cells: number of cells that are not missing.
    """

    name: str
    kinds: int = 0
    cells: int = 0


@dataclass(frozen=True)
class ColumnType:
    """The type of a column.

    Attributes:
        kind: kind of the values.
        repeated: whether a cell is a list of values.
        optional: whether cells may be missing; a missing list counts as an empty one.
        nested: whether a cell is a list of lists; only columns of sequences may be.
    """

    kind: Kind
    repeated: bool = False
    optional: bool = False
    nested: bool = False

    def __str__(self) -> str:
        """Return the text that `parse_type` reads."""
        return f"{self.kind.value}{'[]' * (self.repeated + self.nested)}{'?' * self.optional}"


def parse_type(name: str, text: str, *, may_nest: bool = False) -> ColumnType:
    """Return a type from its text.

    Args:
        name: the column's name, for messages.
        text: the type, such as `float?` or `bytes[]`.
        may_nest: whether lists of lists are allowed.

    >>> str(parse_type("tags", "bytes[]"))
    'bytes[]'

    Raises:
        ValueError: when the text is not a type.
    """
    match = _TYPE.fullmatch(text)
    if match is None or (match[2] == "[][]" and not may_nest):
        what = "types must be int64, float or bytes, with [] for lists and ? if cells may be"
        remedy = f"give for example {name}=float or {name}=bytes[]"
        raise ValueError(f"{what} missing, got {text!r} of {name!r}: {remedy}")
    return ColumnType(Kind(match[1]), match[2] != "", match[3] is not None, match[2] == "[][]")


def kind_of_text(text: str) -> int:
    """Return the kind that a text cell looks like; spaces around numbers are ignored.

    Numbers with leading zeros, and integers with a plus, are text: postal codes, ids or phone
    numbers.

    >>> [kind_of_text(cell) for cell in ("7", "7.0", "true")] == [INT, FLOAT, BOOL]
    True
    >>> [kind_of_text(cell) for cell in ("007", "+4915", "+0.5")] == [TEXT, TEXT, FLOAT]
    True
    """
    cell = text.strip()
    if number := _COUNTED.fullmatch(cell):
        if not number.lastgroup:
            return FLOAT
        return INT if len(cell) <= _INT64_CHARS and int(cell) in _INT64 else BIG_INT
    word = cell.lower()
    if word in _BOOLS:
        return BOOL
    return FLOAT if word.lstrip("+-") in _SPELT_FLOATS else TEXT


def kind_of_value(value: Cell, *, may_nest: bool = False) -> int:
    """Return the bits of a typed cell; 0 for a missing one.

    Args:
        value: the cell.
        may_nest: whether a list may hold lists, as in columns of sequences.

    Raises:
        ValueError: when no feature can hold the value.
    """
    kind = _KIND_OF_TYPE.get(type(value))
    if kind is not None:
        return kind
    if type(value) is int:
        return INT if value in _INT64 else BIG_INT
    if value is None:
        return 0
    if type(value) is not list:
        raise ValueError(f"a value of the type {type(value).__name__}")
    kinds = LIST
    for member in value:
        found = kind_of_value(member)
        if not found:
            raise ValueError("a list that holds null")
        if found & LIST:
            if not may_nest:
                raise ValueError("a list of lists")
            found |= NESTED
        kinds |= found
    return kinds


def add_facts(parts: Iterable[ColumnFacts]) -> list[ColumnFacts]:
    """Return the facts of whole columns from those of pieces, sorted by name."""
    kinds: dict[str, int] = {}
    cells: dict[str, int] = {}
    for part in parts:
        kinds[part.name] = kinds.get(part.name, 0) | part.kinds
        cells[part.name] = cells.get(part.name, 0) + part.cells
    return [ColumnFacts(name, kinds[name], cells[name]) for name in sorted(kinds)]


class ColumnNotes:
    """Facts about the columns of rows, or about the features of records.

    Attributes:
        rows: number of rows.
    """

    def __init__(self, columns: Iterable[str] = (), *, has_texts: bool = False) -> None:
        """Begin with known columns, and say whether cells are texts of unknown kinds."""
        self.rows = 0
        self._has_texts = has_texts
        self._kinds = defaultdict(int, dict.fromkeys(columns, 0))
        self._cells: defaultdict[str, int] = defaultdict(int)  # in half the time of a Counter

    def add(self, row: Mapping[str, Cell], kinds: Mapping[str, int]) -> None:
        """Add a row: cells with a value, and kinds of typed cells, including empty ones."""
        self.rows += 1
        for name, cell in row.items():
            self._cells[name] += 1
            if self._has_texts and not self._kinds[name] & TEXT:
                self._kinds[name] |= kind_of_text(cell)
        for name, kind in kinds.items():
            self._kinds[name] |= kind

    def facts(self) -> list[ColumnFacts]:
        """Return the facts of all rows, sorted by name."""
        return [ColumnFacts(n, self._kinds[n], self._cells[n]) for n in sorted(self._kinds)]


def type_of(facts: ColumnFacts, rows: int) -> ColumnType:
    """Return a column's type from its facts and the number of rows of its table.

    Bools and integers give int64; with a float among them, they give float. All else is text.
    Integers beyond int64 without any float are text too: they are ids.

    >>> str(type_of(ColumnFacts("age", INT | FLOAT, 9), rows=10))
    'float?'
    """
    values = facts.kinds & ~(LIST | NESTED)
    if values & TEXT or not values or (values & BIG_INT and not values & FLOAT):
        kind = Kind.BYTES
    else:
        kind = Kind.FLOAT if values & FLOAT else Kind.INT64
    optional = facts.cells < rows
    return ColumnType(kind, bool(facts.kinds & LIST), optional, bool(facts.kinds & NESTED))


def found_of_columns(facts: Iterable[ColumnFacts], rows: int) -> list[str]:
    """Return the column types as text, in the form of `JobPlan.found`.

    Members of objects are columns of their own, such as `a.b`. A null in the place of the object
    `a` does not make a column `a`.

    >>> found_of_columns([ColumnFacts("home town", TEXT, 3)], rows=3)
    ['bytes home town']
    >>> found_of_columns([ColumnFacts("a", 0, 0), ColumnFacts("a.b", INT, 1)], rows=2)
    ['int64? a.b']
    """
    columns = add_facts(facts)
    dots = ((column.name, dot.start()) for column in columns for dot in _DOT.finditer(column.name))
    objects = {name[:end] for name, end in dots}
    return [
        f"{type_of(column, rows)} {column.name}"
        for column in columns
        if column.kinds or column.name not in objects
    ]


def columns_of_found(found: Iterable[str]) -> dict[str, ColumnType]:
    """Return the column types from the texts of `found_of_columns`."""
    named = (text.partition(" ") for text in found)
    return {name: parse_type(name, text, may_nest=True) for text, _, name in named}


def values_of(cell: Cell, wanted: ColumnType) -> Sequence[Any] | None:
    """Return a cell's values converted to a type; None for a missing scalar.

    >>> values_of(" 7", ColumnType(Kind.FLOAT)), values_of(None, ColumnType(Kind.INT64, True))
    ([7.0], [])

    Raises:
        ValueError: when the cell does not fit the type.
    """
    convert: Callable[[Cell], Any] = _CONVERT[wanted.kind]
    if cell is None:
        return [] if wanted.repeated else None
    if not isinstance(cell, list):
        return [convert(cell)]
    if not wanted.repeated:
        raise ValueError(f"a list of {len(cell)}")
    return [convert(value) for value in cell]


def cast_cells(cells: Sequence[Cell], kind: Kind) -> list[Any]:
    """Return the only value of each cell as `values_of` does, but of many cells at once.

    >>> cast_cells(["7", "-8"], Kind.INT64)
    [7, -8]

    Raises:
        ValueError: when a cell does not fit the kind.
    """
    are_texts = {*map(type, cells)} == {str}
    if are_texts and kind is Kind.BYTES:
        return [*map(str.encode, cells)]
    if are_texts and (text := "".join(cells)).isascii() and "_" not in text:
        with contextlib.suppress(ValueError):
            numbers = [*map(int if kind is Kind.INT64 else float, cells)]
            if math.inf not in map(abs, numbers):  # else 1e999 may be among them
                return numbers
    of_kind = ColumnType(kind)
    return [value for cell in cells for value in values_of(cell, of_kind) or ()]


def steps_of(cell: Cell, wanted: ColumnType) -> Sequence[Sequence[Any]]:
    """Return the values of each step of a cell in a column of sequences; none for a missing cell.

    >>> steps_of([7, 8], ColumnType(Kind.INT64, True))
    [[7], [8]]
    >>> steps_of([[7, 8], [], 9], ColumnType(Kind.INT64, True, nested=True))
    [[7, 8], [], [9]]

    Raises:
        ValueError: when the cell does not fit the type.
    """
    if cell is None:
        return []
    of_step = ColumnType(wanted.kind, wanted.nested)
    return [values_of(item, of_step) or [] for item in (cell if isinstance(cell, list) else [cell])]


def text_of(value: Cell) -> str:
    """Return a single value as text.

    >>> [text_of(value) for value in (True, 7, 1.5, "x")]
    ['true', '7', '1.5', 'x']
    """
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _to_int64(value: Cell) -> int:
    if isinstance(value, str):
        cell = value.strip()
        number = int(cell) if _WHOLE.fullmatch(cell) else _BOOLS.get(cell.lower())
    else:
        number = int(value) if isinstance(value, int) else None
    if number is None:
        raise ValueError(f"{_shown(value)}, not a whole number")
    if number not in _INT64:
        raise ValueError(f"{_shown(value)}, beyond int64")
    return number


def _to_float(value: Cell) -> float:
    if isinstance(value, (int, float)):  # bools too
        number = float(value)
        if math.isinf(number):
            return number
    else:
        cell = value.strip().lower() if isinstance(value, str) else ""
        if not _NUMBER.fullmatch(cell):
            if cell.lstrip("+-") in _SPELT_FLOATS:
                return float(cell)
            if cell not in _BOOLS:
                raise ValueError(f"{_shown(value)}, not a number")
        number = float(_BOOLS.get(cell, cell))
    if abs(number) >= _BEYOND_FLOAT32:
        raise ValueError(f"{_shown(value)}, beyond float32")
    return number


def is_beyond_float32(number: float) -> bool:
    """Return whether a finite number would become an infinite one in an Example.

    >>> is_beyond_float32(1e300), is_beyond_float32(float("inf"))
    (True, False)
    """
    return abs(number) >= _BEYOND_FLOAT32 and not math.isinf(number)


def _to_bytes(value: Cell) -> bytes:
    if type(value) is str:
        return value.encode()
    return value if isinstance(value, bytes) else text_of(value).encode()


def _shown(value: Cell) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


_CONVERT = {Kind.BYTES: _to_bytes, Kind.FLOAT: _to_float, Kind.INT64: _to_int64}


def format_of(name: str) -> str:
    """Return the table format of a file by its extension; empty if it is not a table.

    >>> format_of("a/b.CSV"), format_of("readme.txt")
    ('csv', '')
    """
    return next((end[1:] for end in FORMATS if name.lower().endswith(end)), "")


def is_table_file(uri: str) -> bool:
    """Return whether a path names a single table, not a folder or glob, by its form alone.

    Brackets are part of a name. As a glob, `a[1].csv` would read `a1.csv` instead of that file.

    >>> [is_table_file(uri) for uri in ("a[1].csv", "gs://b/tables", "a/*.csv")]
    [True, False, False]
    """
    return bool(format_of(uri)) and not _GLOB.search(uri)


def root_and_pattern(uri: str) -> tuple[str, str]:
    """Return the folder to list, and the glob for names below it (empty for all names).

    >>> root_and_pattern("gs://b/2024/part-*/a?.csv"), root_and_pattern("tables/")
    (('gs://b/2024', 'part-*/a?.csv'), ('tables', ''))
    """
    if not _GLOB.search(uri):
        return uri.rstrip("/") or "/", ""
    parts = uri.split("/")
    fixed = next(place for place, part in enumerate(parts) if _GLOB.search(part))
    root = "/".join(parts[:fixed])
    return root or ("/" if fixed else "."), "/".join(parts[fixed:])


def matches(name: str, pattern: str) -> bool:
    """Return whether a name below a root matches a glob.

    Only `**` matches slashes; `**/` matches any number of folders, also none.

    >>> matches("a/b.csv", "*.csv"), matches("a/b.csv", "*/*.csv"), matches("b.csv", "**/*.csv")
    (False, True, True)
    """
    return not pattern or _expression_of(pattern).fullmatch(name) is not None


def may_hold(folder: str, pattern: str) -> bool:
    """Return whether files in a folder, or in folders below it, can match a glob.

    >>> may_hold("a", "*.csv"), may_hold("a", "*/b/*.csv"), may_hold("a/b", "**/*.csv")
    (False, True, True)
    """
    parts = pattern.split("/")[:-1]
    above = ("/".join(parts[: end + 1]) for end in range(len(parts)))
    return not pattern or any(matches(folder, glob) for glob in above)


@functools.lru_cache(maxsize=64)
def _expression_of(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"((?:^|(?<=/))\*\*/|\*\*|[*?])", pattern)
    return re.compile("".join(_WILD.get(part) or re.escape(part) for part in parts), re.DOTALL)
