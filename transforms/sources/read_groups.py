"""Read the table of groups that `--group_by` names: samples of a group share a split."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import google_crc32c

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.storage import Access, read_uri, source_changed

if TYPE_CHECKING:  # pyarrow takes 0.2 s, and few runs have a table
    import pyarrow as pa
    from numpy.typing import NDArray

MAX_GROUP_ROWS = 10_000_000
"""Largest table. Each worker holds 33 bytes a row; the step that reads it holds 250."""

_KEY, _GROUPS = "key", ("cluster", "group")
_REMEDY = "give a .csv or .parquet file with the columns key and cluster, or key and group"


GroupDigests = tuple[Any, Any]
"""Arrays of sorted digests of keys, and of the digest of each one's group."""


def read_groups(splitting: Splitting, access: Access) -> GroupDigests:
    """Return the sorted digests of a table's keys, and the digest of each one's group.

    Args:
        splitting: rule that names the table, and draws splits by the digests.
        access: credentials and limits for stores.

    Raises:
        RuntimeError: `E-TAB-FORMAT` or `E-TAB-HEADER` when the table cannot be used; `E-SRC-SPLIT`
            when a key has no group, or two; `E-SRC-CHANGED` when it changed since the run began.
    """
    import numpy as np

    uri = splitting.group_table
    data = read_uri(uri, access)
    identity = f"{len(data)}:{google_crc32c.value(data):08x}"
    if splitting.table_identity not in ("", identity):
        raise source_changed(uri, "another table than when the run began")
    table = _parse_groups(data, uri)
    if not 0 < table.num_rows <= MAX_GROUP_ROWS:
        what = f"has {table.num_rows} rows, not 1 to {MAX_GROUP_ROWS}"
        remedy = "leave out the keys that are alone in their group"
        raise RuntimeError(fault_line("E-TAB-FORMAT", uri, what, remedy))
    keys, groups = (_digests(table, name, splitting, uri) for name in table.column_names)
    order = np.argsort(keys, kind="stable")
    keys, groups = keys[order], groups[order]
    is_repeated = np.append(False, keys[1:] == keys[:-1])
    for place in np.flatnonzero(is_repeated[1:] & (groups[1:] != groups[:-1]))[:1]:
        rows = [table.slice(row, 1).to_pylist()[0] for row in sorted(order[place : place + 2])]
        first, second = ([*row.values()] for row in rows)
        what = f"key {first[0]!r} is in the groups {first[1]!r} and {second[1]!r}"
        raise RuntimeError(fault_line("E-SRC-SPLIT", uri, what, "give each key one group"))
    return keys[~is_repeated], groups[~is_repeated]


def _parse_groups(data: bytes, uri: str) -> "pa.Table":
    """Return the columns of keys and groups as text."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    texts = csv.ConvertOptions(column_types=dict.fromkeys((_KEY, *_GROUPS), pa.string()))
    try:
        if uri.lower().endswith(".csv"):
            table = csv.read_csv(io.BytesIO(data), convert_options=texts)
        else:
            table = parquet.read_table(io.BytesIO(data))
    except (pa.ArrowException, OSError) as error:
        what = " ".join(str(error).split())
        raise RuntimeError(fault_line("E-TAB-FORMAT", uri, what, _REMEDY)) from None
    names = [name for name in (_KEY, *_GROUPS) if name in table.column_names]
    numbers = [name for name in names if pa.types.is_floating(table[name].type)]
    if names[:1] != [_KEY] or len(names) != 2 or numbers:
        what = f"has the columns {', '.join(map(repr, table.column_names[:20]))}"
        if numbers:
            what = f"column {numbers[0]!r} holds floating-point numbers"
        raise RuntimeError(fault_line("E-TAB-HEADER", uri, what, _REMEDY))
    try:
        return table.select(names).cast(pa.schema([(name, pa.string()) for name in names]))
    except pa.ArrowException as error:
        raise RuntimeError(fault_line("E-TAB-HEADER", uri, str(error), _REMEDY)) from None


def _digests(table: "pa.Table", name: str, splitting: Splitting, uri: str) -> "NDArray":
    """Return the digests of a column's texts, in the order of the rows."""
    import numpy as np

    def digests() -> Iterator[bytes]:
        row = 0
        for batch in table[name].chunks:
            for text in batch.to_pylist():
                if not text:
                    what = f"row {row} has no {name}"
                    raise RuntimeError(fault_line("E-SRC-SPLIT", uri, what, "give every row one"))
                yield splitting.digest_of(text)
                row += 1

    return np.frombuffer(b"".join(digests()), "S16")
