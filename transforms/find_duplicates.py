"""Find what several splits have in common: sources of the same bytes, by the shards' indexes.

A photo that is in train and in test under two names makes a model look better than it is. Indexes
hold the SHA-256 of every source, so that nothing is read again; references are joined on it in
partitions. Of a record of several sources the first one counts: masks may well be equal.
"""

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import apache_beam as beam
import msgspec

from schemas.manifest import SharedContents
from schemas.shards import ShardInfo, index_names, index_stem
from transforms.build_shard import read_index
from transforms.shard_index import IndexRow
from transforms.sources.elements import is_in_process
from transforms.storage import DEFAULT_ACCESS, Access, open_storage

MAX_LINES = 10_000
"""Of `duplicates.jsonl`; the manifest has the exact counts."""
MAX_SAMPLES = 10
"""A split, that a line names."""
_PARTITIONS = 4096  # of the join, on a cluster: each is held in memory
_PARTITIONS_IN_PROCESS = 16  # where all memory is one


class RecordOf(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A record of a content: name of its first source, and its key."""

    name: str
    key: str


class Duplicate(msgspec.Struct, frozen=True):
    """A content that several splits have: one line of `duplicates.jsonl`.

    Attributes:
        sha256: of the content, hex.
        records: made of it, per split.
        samples: the first of them by name and key, at most `MAX_SAMPLES` a split.
    """

    sha256: str
    records: dict[str, int]
    samples: dict[str, list[RecordOf]]


class Duplicates(msgspec.Struct, frozen=True):
    """What splits have in common; parts of it add up.

    Attributes:
        pairs: of splits that share contents, by name.
        lines: contents, by SHA-256; the first `MAX_LINES` of all.
    """

    pairs: list[SharedContents] = []
    lines: list[Duplicate] = []


NO_DUPLICATES = Duplicates()


class _Contents(msgspec.Struct, frozen=True, array_like=True):
    """What a partition holds of a shard: one value of each list a record."""

    split: str
    sha256s: list[bytes]
    names: list[str]
    keys: list[str]


def find_duplicates(records: Iterable[tuple[str, bytes, str, str]]) -> Duplicates:
    """Return what splits have in common.

    Args:
        records: (split, SHA-256, name of the source, key) of every record, in any order; all
            records of a content must be among them. However many a content has, few are held.
    """
    of_content: dict[bytes, dict[str, _Records]] = {}
    for split, sha256, name, key in records:
        per_split = of_content.setdefault(sha256, {})
        per_split.setdefault(split, _Records()).add(RecordOf(name, key))
    lines = [
        _duplicate(sha256, per_split)
        for sha256, per_split in sorted(of_content.items())
        if len(per_split) > 1
    ]
    return add_duplicates(Duplicates(_pairs(line), [line]) for line in lines)


def add_duplicates(parts: Iterable[Duplicates]) -> Duplicates:
    """Return the sum of parts that tell of different contents."""
    pairs: dict[tuple[str, str], SharedContents] = {}
    lines: list[Duplicate] = []
    for part in parts:
        for pair in part.pairs:
            known = pairs.get(pair.splits)
            pairs[pair.splits] = pair if known is None else _add_pair(known, pair)
        lines += part.lines
        if len(lines) > 2 * MAX_LINES:
            lines = _first_lines(lines)
    return Duplicates([pairs[splits] for splits in sorted(pairs)], _first_lines(lines))


def duplicates_jsonl(lines: Iterable[Duplicate]) -> bytes:
    """Return contents as lines of JSON; records as `{"name": …, "key": …}`."""
    return b"".join(msgspec.json.encode(_spelt_out(line)) + b"\n" for line in lines)


def contents_of(split: str, rows: Iterable[IndexRow], partitions: int) -> dict[int, _Contents]:
    """Return what each partition gets of a shard's records, by their first sources."""
    parts: dict[int, _Contents] = {}
    for row in rows:
        if not row.sources:
            continue
        source = row.sources[0]
        sha256 = bytes.fromhex(source.sha256)
        partition = int.from_bytes(sha256[:4], "big") % partitions
        part = parts.get(partition)
        if part is None:
            part = parts[partition] = _Contents(split, [], [], [])
        part.sha256s.append(sha256)
        part.names.append(source.name)
        part.keys.append(row.key)
    return parts


class _Records:
    """The records of a content in one split: their number, and the first of them."""

    __slots__ = ("count", "some")

    def __init__(self) -> None:
        self.count = 0
        self.some: list[RecordOf] = []

    def add(self, record: RecordOf) -> None:
        self.count += 1
        self.some.append(record)
        if len(self.some) > 2 * MAX_SAMPLES:
            self.some = self.first()

    def first(self) -> list[RecordOf]:
        return sorted(self.some)[:MAX_SAMPLES]


def _duplicate(sha256: bytes, per_split: Mapping[str, _Records]) -> Duplicate:
    splits = sorted(per_split)
    return Duplicate(
        sha256=sha256.hex(),
        records={split: per_split[split].count for split in splits},
        samples={split: per_split[split].first() for split in splits},
    )


def _pairs(line: Duplicate) -> list[SharedContents]:
    return [
        SharedContents(
            splits=splits,
            contents=1,
            sha256=line.sha256,
            names=_names(line.samples[splits[0]][0], line.samples[splits[1]][0]),
        )
        for splits in itertools.combinations(sorted(line.records), 2)
    ]


def _names(one: RecordOf, other: RecordOf) -> tuple[str, str]:
    """Return what two records are called: with their keys where the files have the same name."""
    if one.name == other.name != one.key:
        return f"{one.name} (key {one.key})", f"{other.name} (key {other.key})"
    return one.name, other.name


def _add_pair(one: SharedContents, other: SharedContents) -> SharedContents:
    first = min(one, other, key=operator.attrgetter("sha256"))
    return msgspec.structs.replace(first, contents=one.contents + other.contents)


def _first_lines(lines: list[Duplicate]) -> list[Duplicate]:
    return sorted(lines, key=operator.attrgetter("sha256"))[:MAX_LINES]


def _spelt_out(line: Duplicate) -> dict:
    samples = {
        split: [{"name": record.name, "key": record.key} for record in records]
        for split, records in line.samples.items()
    }
    return {"sha256": line.sha256, "records": line.records, "samples": samples}


@dataclass(eq=False)
class FindDuplicates(beam.PTransform):
    """Shard infos -> what splits have in common, one element.

    A group-by on SHA-256 of references alone, from the indexes of shards that are whole, whether
    this run wrote or kept them.

    Attributes:
        output: URI of the data set.
        access: how stores are reached.
    """

    output: str
    access: Access = DEFAULT_ACCESS

    def expand(self, infos: beam.PCollection[ShardInfo]) -> beam.PCollection[Duplicates]:
        """Join the shards' indexes on their sources' SHA-256."""
        in_process = is_in_process(infos.pipeline)
        count = _PARTITIONS_IN_PROCESS if in_process else _PARTITIONS
        return (
            infos
            | "ReadContents" >> beam.FlatMap(_read_contents, self.output, self.access, count)
            | "JoinOnContent" >> beam.GroupByKey()
            | "FindInPartition" >> beam.MapTuple(_find_in_partition)
            | "AddDuplicates" >> beam.CombineGlobally(add_duplicates)
        )


def _read_contents(
    info: ShardInfo, output: str, access: Access, count: int
) -> Iterator[tuple[int, _Contents]]:
    name, _ = index_names(index_stem(info.file))
    rows = read_index(name, open_storage(output, access))
    yield from contents_of(info.split, rows, count).items()


def _find_in_partition(partition: int, batches: Iterable[_Contents]) -> Duplicates:
    return find_duplicates(
        (batch.split, *record)
        for batch in batches
        for record in zip(batch.sha256s, batch.names, batch.keys, strict=True)
    )
