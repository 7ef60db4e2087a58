"""Find sources of the same bytes in several splits, by the shards' indexes.

A photo that is in train and in test makes a model look better than it is. Indexes hold the SHA-256
of every source, so nothing is read again: references are joined on it in partitions. Of a record of
several sources the first one counts, since masks may well be equal.
"""

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.manifest import SharedContents
from beam_tfrec.schemas.shards import ShardInfo, index_names, index_stem
from beam_tfrec.transforms.build_shard import read_index
from beam_tfrec.transforms.shuffle.elements import num_groups
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, open_storage

MAX_LINES = 10_000
"""Most lines of `duplicates.jsonl`; the manifest has the exact counts."""
MAX_SAMPLES = 10
"""Most samples a split that a line names."""

_PARTITIONS = 4096  # of the join, on a cluster: each is held in memory


class RecordOf(msgspec.Struct, frozen=True, order=True, gc=False):
    """A record: name of its first source, and its key."""

    name: str
    key: str


class Duplicate(msgspec.Struct, frozen=True):
    """Bytes that several splits have: one line of `duplicates.jsonl`.

    Attributes:
        sha256: digest of the bytes, hex.
        records: number of records made of them, per split.
        samples: the first of these by name and key, at most `MAX_SAMPLES` a split.
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


Contents = tuple[str, bytes, str, str]
"""A record: its split, the SHA-256 and the name of its first source, and its key."""


def find_duplicates(records: Iterable[Contents]) -> Duplicates:
    """Return what splits have in common.

    Args:
        records: in any order. All records of a SHA-256 must be among them; few of them are held.
    """
    counts: dict[bytes, Counter[str]] = {}
    firsts: dict[tuple[bytes, str], list[RecordOf]] = {}
    for split, sha256, name, key in records:
        counts.setdefault(sha256, Counter())[split] += 1
        held = firsts.setdefault((sha256, split), [])
        held.append(RecordOf(name, key))
        if len(held) > 2 * MAX_SAMPLES:
            held[:] = sorted(held)[:MAX_SAMPLES]
    lines = [
        Duplicate(
            sha256=sha256.hex(),
            records={split: per_split[split] for split in sorted(per_split)},
            samples={s: sorted(firsts[sha256, s])[:MAX_SAMPLES] for s in sorted(per_split)},
        )
        for sha256, per_split in sorted(counts.items())
        if len(per_split) > 1
    ]
    return add_duplicates(Duplicates([*_pairs(line)], [line]) for line in lines)


def add_duplicates(parts: Iterable[Duplicates]) -> Duplicates:
    """Return the sum of parts of different contents."""
    pairs: dict[tuple[str, str], SharedContents] = {}
    lines: list[Duplicate] = []
    for part in parts:
        for pair in part.pairs:
            known = pairs.get(pair.splits, pair)
            contents = pair.contents + (0 if known is pair else known.contents)
            first = min(known, pair, key=operator.attrgetter("sha256"))
            pairs[pair.splits] = msgspec.structs.replace(first, contents=contents)
        lines += part.lines
        if len(lines) > 2 * MAX_LINES:
            lines = _first_lines(lines)
    return Duplicates([pairs[splits] for splits in sorted(pairs)], _first_lines(lines))


def _pairs(line: Duplicate) -> Iterator[SharedContents]:
    for one, other in itertools.combinations(sorted(line.records), 2):
        names = _names(line.samples[one][0], line.samples[other][0])
        yield SharedContents((one, other), 1, line.sha256, names)


def _names(one: RecordOf, other: RecordOf) -> tuple[str, str]:
    """Return the names of two records, with their keys where the names are equal."""
    if one.name == other.name != one.key:
        return f"{one.name} (key {one.key})", f"{other.name} (key {other.key})"
    return one.name, other.name


def _first_lines(lines: list[Duplicate]) -> list[Duplicate]:
    return sorted(lines, key=operator.attrgetter("sha256"))[:MAX_LINES]


@dataclass(eq=False)
class FindDuplicates(beam.PTransform):
    """Shard infos -> what splits have in common, one element.

    A group-by of references on SHA-256, from the indexes of all shards, written or kept.

    Attributes:
        output: URI of the data set.
        access: how stores are reached.
    """

    output: str
    access: Access = DEFAULT_ACCESS

    def expand(self, infos: beam.PCollection[ShardInfo]) -> beam.PCollection[Duplicates]:
        """Join the shards' indexes on their sources' SHA-256."""
        count = num_groups(infos.pipeline, _PARTITIONS)
        return (
            infos
            | "ReadContents" >> beam.FlatMap(_read_contents, self.output, self.access, count)
            | "JoinOnContent" >> beam.GroupByKey()
            | "FindInPartition" >> beam.MapTuple(_find_in_partition)
            | "AddDuplicates" >> beam.CombineGlobally(add_duplicates)
        )


def _read_contents(
    info: ShardInfo, output: str, access: Access, count: int
) -> Iterator[tuple[int, list[Contents]]]:
    """Yield what each partition gets of a shard's records, by their first sources."""
    name, _ = index_names(index_stem(info.file))
    parts: dict[int, list[Contents]] = {}
    for row in read_index(name, open_storage(output, access)):
        for source in row.sources[:1]:
            sha256 = bytes.fromhex(source.sha256)
            part = parts.setdefault(int.from_bytes(sha256[:4], "big") % count, [])
            part.append((info.split, sha256, source.name, row.key))
    yield from parts.items()


def _find_in_partition(partition: int, batches: Iterable[list[Contents]]) -> Duplicates:
    return find_duplicates(itertools.chain.from_iterable(batches))
