"""Find source files with equal bytes in several splits, from the shards' indexes.

A photo in both train and test makes a model look better than it is. Indexes hold the SHA-256 of
every source, so no image is read again: a join in partitions compares the hashes. If a record has
several sources, only the first is compared, since masks of different photos may be equal.
"""

import heapq
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.manifest import SharedContents
from beam_tfrec.schemas.shards import ShardInfo
from beam_tfrec.transforms.build_shard import read_own_index
from beam_tfrec.transforms.shuffle.elements import num_groups
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, open_storage

MAX_LINES = 10_000
"""Maximum number of lines of `duplicates.jsonl`; the manifest has the exact counts."""
MAX_SAMPLES = 10
"""Maximum number of samples per split that a line names."""


class RecordOf(msgspec.Struct, frozen=True, order=True, gc=False):
    """A record, by the name of its first source and its key."""

    name: str
    key: str


class Duplicate(msgspec.Struct, frozen=True):
    """A content that several splits share: one line of `duplicates.jsonl`.

    Attributes:
        sha256: digest of the content, hex.
        records: number of records with this content, by split.
        samples: first records by name and key, at most `MAX_SAMPLES` per split.
    """

    sha256: str
    records: dict[str, int]
    samples: dict[str, list[RecordOf]]


class Duplicates(msgspec.Struct, frozen=True):
    """Contents that several splits share; `add_duplicates` adds parts.

    Attributes:
        pairs: pairs of splits that share contents, sorted by name.
        lines: shared contents, sorted by SHA-256; at most `MAX_LINES`.
    """

    pairs: list[SharedContents] = []
    lines: list[Duplicate] = []


NO_DUPLICATES = Duplicates()


Contents = tuple[str, bytes, str, str]
"""A record: its split, SHA-256 and name of its first source, its key."""


def find_duplicates(records: Iterable[Contents]) -> Duplicates:
    """Return the contents that several splits share.

    Args:
        records: records in any order, including all records of each SHA-256 that occurs.
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
    """Add parts; no content may be in two of them."""
    pairs: dict[tuple[str, str], SharedContents] = {}
    by_sha256 = operator.attrgetter("sha256")
    several = list(parts)
    for pair in (pair for part in several for pair in part.pairs):
        known = pairs.get(pair.splits, pair)
        contents = pair.contents + (0 if known is pair else known.contents)
        first = min(known, pair, key=by_sha256)
        pairs[pair.splits] = msgspec.structs.replace(first, contents=contents)
    lines = (line for part in several for line in part.lines)
    firsts = heapq.nsmallest(MAX_LINES, lines, key=by_sha256)
    return Duplicates([pairs[splits] for splits in sorted(pairs)], firsts)


def _pairs(line: Duplicate) -> Iterator[SharedContents]:
    for one, other in itertools.combinations(sorted(line.records), 2):
        names = _names(line.samples[one][0], line.samples[other][0])
        yield SharedContents((one, other), 1, line.sha256, names)


def _names(one: RecordOf, other: RecordOf) -> tuple[str, str]:
    """Return the names of two records; equal names are followed by the records' keys."""
    if one.name == other.name != one.key:
        return f"{one.name} (key {one.key})", f"{other.name} (key {other.key})"
    return one.name, other.name


@dataclass(eq=False)
class FindDuplicates(beam.PTransform):
    """Shard infos -> contents that several splits share, one element.

    Groups the rows of all shards' indexes by SHA-256.

    Attributes:
        output: URI of the data set.
        access: credentials and limits for stores.
    """

    output: str
    access: Access = DEFAULT_ACCESS

    def expand(self, infos: beam.PCollection[ShardInfo]) -> beam.PCollection[Duplicates]:
        """Read the indexes, group their rows by SHA-256, and add up."""
        count = num_groups(infos.pipeline)
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
    """Yield a shard's records by the partition of their first sources' SHA-256."""
    name, *_ = info.index_names
    parts: dict[int, list[Contents]] = {}
    for row in read_own_index(name, open_storage(output, access)):
        for source in row.sources[:1]:
            sha256 = bytes.fromhex(source.sha256)
            part = parts.setdefault(int.from_bytes(sha256[:4], "big") % count, [])
            part.append((info.split, sha256, source.name, row.key))
    yield from parts.items()


def _find_in_partition(partition: int, batches: Iterable[list[Contents]]) -> Duplicates:
    return find_duplicates(itertools.chain.from_iterable(batches))
