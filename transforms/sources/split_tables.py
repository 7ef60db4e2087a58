"""The tables that workers need to draw splits: groups of keys, and stratified splits.

`read_groups` reads the table of `--group_by`. For `--split_by stratified`, a pass over the source
lists all samples with their classes, and one step divides them. The pass that makes samples looks
their splits up.
"""

import array
import functools
import hashlib
import io
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import apache_beam as beam
import google_crc32c
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.schemas.faults import counted, run_fault
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.splits import CLASS, NEW, DigestValues, Splitting, Unassigned, stratify
from beam_tfrec.transforms.storage import Access, open_storage, read_uri, source_changed
from beam_tfrec.transforms.storage.read_data_set import read_finished, read_rows

if TYPE_CHECKING:  # pyarrow takes 0.2 s, and few runs have a table
    import pyarrow as pa
    from numpy.typing import NDArray

MAX_GROUP_ROWS = 10_000_000
"""Largest table. Each worker holds 33 bytes a row; the step that reads it holds 250."""

MAX_STRATIFIED = 10_000_000
"""Largest number of samples: one step holds them all, with up to 410 bytes each."""

_KEY, _GROUPS = "key", ("cluster", "group")
_TABLE_REMEDY = "give a .csv or .parquet file with the columns key and cluster, or key and group"
_BATCH_SAMPLES = 1 << 18
_DIGEST_BYTES, _CLASS_BYTES = 16, 8

Classes = Collection[int | str]


class Listed(NamedTuple):
    """Samples of a source, as compact columns.

    Attributes:
        digests: 16 bytes a sample: the digest of its group, or of its key.
        classes: 8 bytes for each class of each sample: a digest of the class.
        counts: number of classes of each sample, as int32.
        keys: digest of each sample's key; empty unless there are earlier data sets.
    """

    digests: bytes
    classes: bytes
    counts: bytes
    keys: bytes = b""


class EarlierShard(NamedTuple):
    """A shard of an earlier data set.

    Attributes:
        split: number of its split.
        keys: digests of its records' keys.
    """

    split: int
    keys: bytes


def read_groups(splitting: Splitting, access: Access) -> DigestValues:
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
        remedy = "give it rows, but no keys that are alone in their group"
        raise run_fault("E-TAB-FORMAT", uri, what, remedy)
    keys, groups = (_digests_in(table, name, splitting, uri) for name in table.column_names)
    order = np.argsort(keys, kind="stable")
    keys, groups = keys[order], groups[order]
    is_repeated = np.append(False, keys[1:] == keys[:-1])
    for place in np.flatnonzero(is_repeated[1:] & (groups[1:] != groups[:-1]))[:1]:
        rows = [table.slice(row, 1).to_pylist()[0] for row in sorted(order[place : place + 2])]
        first, second = ([*row.values()] for row in rows)
        what = f"key {first[0]!r} is in the groups {first[1]!r} and {second[1]!r}"
        raise run_fault("E-SRC-SPLIT", uri, what, "give each key one group")
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
        names = [name for name in table.column_names if name in (_KEY, *_GROUPS)]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise run_fault("E-TAB-FORMAT", uri, " ".join(str(error).split()), _TABLE_REMEDY) from None
    names.sort(key=lambda name: name != _KEY)
    what = f"has the columns {', '.join(map(repr, table.column_names[:20]))}"
    if names[:1] != [_KEY] or len(names) != 2 or names[1] == _KEY:
        raise run_fault("E-TAB-HEADER", uri, what, _TABLE_REMEDY)
    for name in names:
        if pa.types.is_floating(table[name].type):
            what = f"column {name!r} holds floating-point numbers"
            raise run_fault("E-TAB-HEADER", uri, what, _TABLE_REMEDY)
    try:
        return table.select(names).cast(pa.schema([(name, pa.string()) for name in names]))
    except pa.ArrowException as error:
        raise run_fault("E-TAB-HEADER", uri, str(error), _TABLE_REMEDY) from None


def _digests_in(table: "pa.Table", name: str, splitting: Splitting, uri: str) -> "NDArray":
    """Return the digests of a column's texts, in the order of the rows."""
    digests = bytearray()
    texts = itertools.chain.from_iterable(chunk.to_pylist() for chunk in table[name].chunks)
    for row, text in enumerate(texts):
        if not text:
            raise run_fault("E-SRC-SPLIT", uri, f"row {row} has no {name}", "give every row one")
        digests += splitting.digest_of(text)
    return _as_array([bytes(digests)])


def read_earlier(uri: str, splitting: Splitting, access: Access) -> Iterator[EarlierShard]:
    """Yield the shards of an earlier data set; its samples keep their splits.

    Raises:
        RuntimeError: `E-VER-…` when an index is missing, or does not describe its shard.
    """
    storage, splits = open_storage(uri, access), [*splitting.shares]
    manifest, _ = read_finished(storage, "--since")
    for shard in manifest.shards:
        if shard.split in splits:  # others are of size buckets
            rows = read_rows(storage, shard, "restore index/ of that data set")
            keys = b"".join(splitting.digest_of(row.key) for row in rows)
            yield EarlierShard(splits.index(shard.split), keys)


def assign_splits(
    splitting: Splitting, batches: Iterable[Listed], earlier: Collection[EarlierShard] = ()
) -> DigestValues:
    """Return the sorted digests of keys or groups, and the number of the split of each.

    Args:
        splitting: rule with the shares.
        batches: all samples of the source, in any order.
        earlier: shards of all earlier data sets.

    Raises:
        RuntimeError: `E-ARG` when there are too many samples, or none has a class, or the group of
            an earlier sample is unknown.
    """
    import numpy as np

    listed = list(batches)
    digests = _as_array(part.digests for part in listed)
    counts = np.frombuffer(b"".join(part.counts for part in listed), np.int32)
    what = ""
    if len(counts) > MAX_STRATIFIED:
        what = f"has {len(counts)} samples, more than {MAX_STRATIFIED} for split_by stratified"
    elif len(counts) and not counts.any():
        what = f"has no sample with a {splitting.stratify_by}, which split_by stratified needs"
    if what:
        raise run_fault("E-ARG", "the source", what, "give --split_by hash")
    known = np.full(len(counts), NEW)
    if held := b"".join(shard.keys for shard in earlier):
        kept, keys = _as_array([held]), _as_array(part.keys for part in listed)
        splits = np.repeat(
            [shard.split for shard in earlier],
            [len(shard.keys) // _DIGEST_BYTES for shard in earlier],
        )
        order = np.argsort(kept)
        found = order[np.searchsorted(kept, keys, sorter=order).clip(max=len(kept) - 1)]
        known = np.where(kept[found] == keys, splits[found], NEW)
        if splitting.group_by:
            _check_groups(digests, known, len(np.setdiff1d(kept, keys)))
    tokens = np.frombuffer(b"".join(part.classes for part in listed), np.int64)
    return stratify(
        digests,
        np.repeat(np.arange(len(counts)), counts),
        np.unique(tokens, return_inverse=True)[1],
        [*splitting.shares.values()],
        known,
    )


def _check_groups(digests: "NDArray", known: "NDArray", unlisted: int) -> None:
    """Refuse earlier samples whose group is unknown, and groups that lie in two splits.

    Otherwise a new sample could get another split than an earlier one of its group.
    """
    import numpy as np

    order = np.lexsort((known, digests))
    order = order[known[order] != NEW]
    same_group = digests[order][1:] == digests[order][:-1]
    divided = same_group & (np.diff(known[order]) != 0)
    what = ""
    if unlisted:
        lacking = counted(unlisted, "sample")
        what = f"the sources lack or reject {lacking} of earlier data sets, so groups are unknown"
    elif divided.any():
        what = "the earlier data sets have a group in two splits"
    if what:
        remedy = "give the sources of all days with unchanged groups, or write a new data set"
        raise run_fault("E-ARG", "--since", what, remedy)


def _as_array(parts: Iterable[bytes]) -> "NDArray":
    import numpy as np

    return np.frombuffer(b"".join(parts), f"S{_DIGEST_BYTES}")


@functools.lru_cache(maxsize=1 << 16)
def _token(name: int | str) -> bytes:
    return hashlib.blake2b(str(name).encode(), digest_size=_CLASS_BYTES).digest()


def _value_of(sample: Sample) -> Classes:
    """Return the value of the field to stratify by, if the sample has one."""
    return [name for name in [getattr(sample.split, "value", "")] if name]


def make_split_tables(
    pieces: beam.PCollection,
    read: Any,
    splitting: Splitting,
    classes_of: Callable[[Sample], Classes] | None,
    earlier: Sequence[str],
    access: Access,
) -> dict[str, beam.PCollection[DigestValues]]:
    """Build the steps that make the arguments of `Splitting.with_tables`, one element each.

    Args:
        pieces: pieces of the source.
        read: reader of a piece, with a field `splitting`.
        splitting: rule of the reader.
        classes_of: function that returns the classes of a sample; None unless stratified.
        earlier: URIs of earlier data sets.
        access: credentials and limits for stores.
    """
    tables: dict[str, beam.PCollection[DigestValues]] = {}
    rule = pieces.pipeline | "Splitting" >> beam.Create([splitting])
    if splitting.group_table:
        tables["groups"] = rule | "ReadGroups" >> beam.Map(read_groups, access)
    if classes_of is not None:
        sides = {name: beam.pvalue.AsSingleton(table) for name, table in tables.items()}
        # Images in tables and records of compressed files are staged once, by the next pass.
        unstaged = {"staging": None} if "staging" in vars(read) else {}
        reader = replace(read, splitting=replace(splitting, lists=True), **unstaged)
        names_of = classes_of if splitting.stratify_by == CLASS else _value_of
        lister = _List(reader, names_of, has_earlier=bool(earlier))
        listed = pieces | "ListSamples" >> beam.ParDo(lister, **sides)
        sets = pieces.pipeline | "EarlierSets" >> beam.Create(earlier)
        shards = sets | "ReadEarlier" >> beam.FlatMap(read_earlier, splitting, access)
        both = beam.pvalue.AsList(listed), beam.pvalue.AsList(shards)
        tables["assigned"] = rule | "AssignSplits" >> beam.Map(assign_splits, *both)
    return tables


@dataclass(eq=False)
class _List(beam.DoFn):
    """Runs a reader, and keeps of each sample what decides its split."""

    read: Any
    names_of: Callable[[Sample], Classes]
    has_earlier: bool

    def start_bundle(self) -> None:
        self._columns = bytearray(), bytearray(), array.array("i"), bytearray()

    def process(self, piece: Any, groups: DigestValues | None = None) -> Iterator[Listed]:
        splitting = self.read.splitting
        if groups and splitting.groups is None:
            self.read = replace(self.read, splitting=splitting.with_tables(groups))
        for item in self.read(piece):
            if isinstance(item, Sample) and isinstance(item.split, Unassigned):
                digests, classes, counts, keys = self._columns
                names = self.names_of(item)
                digests += item.split.digest
                classes += b"".join(map(_token, names))
                counts.append(len(names))
                keys += splitting.digest_of(item.key) if self.has_earlier else b""
                if len(counts) == _BATCH_SAMPLES:
                    yield self._take()

    def finish_bundle(self) -> Iterator:
        yield GlobalWindows.windowed_value_at_end_of_window(self._take())

    def _take(self) -> Listed:
        digests, classes, counts, keys = self._columns
        self.start_bundle()
        return Listed(bytes(digests), bytes(classes), counts.tobytes(), bytes(keys))
