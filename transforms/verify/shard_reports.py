"""What is asked of a shard that is verified, what is found in it, and how that of many adds up."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from schemas.example_rules import ExampleRules
from schemas.findings import Findings, Verified, at_record
from schemas.manifest import ShardEntry
from schemas.order import Order
from transforms.storage import DEFAULT_ACCESS, Access, Entry

RESTORE = "restore it from a copy, or delete it and manifest.json and run the command again"

OrderKey = tuple[int, str]
"""What a shuffled split is sorted by."""


class SharedContent(NamedTuple):
    """A content that several splits have, as a line of `duplicates.jsonl` tells.

    Attributes:
        number: of the line, from 1.
        records: made of it, per split.
        named: of those, some per split: (name of the source, key).
    """

    number: int
    records: dict[str, int]
    named: dict[str, frozenset[tuple[str, str]]]


class ShardTask(msgspec.Struct, frozen=True):
    """One shard to be verified.

    Attributes:
        entry: as in the manifest.
        stem: what names its receipt.
        index: names of its index, Parquet and text.
        plan: digest of the plan, hex.
        file: as listed; None where it is not there.
        place: of the shard in the manifest, from 0.
    """

    entry: ShardEntry
    stem: str
    index: tuple[str, str]
    plan: str
    file: Entry | None
    place: int = 0


@dataclass(frozen=True)
class ShardRules:
    """What all shards of a data set have in common.

    Attributes:
        root: path or URI of the data set.
        examples: what every record is to be.
        orders: order of each split.
        seed: of the shuffle.
        reads: read the shards' bytes, and not their indexes and receipts alone.
        hashes: compare SHA-256 of shards and of images.
        converted: splits in which images are not their files' own bytes.
        access: how the store is reached.
        has_sums: whether the manifest has the sums of receipts, and each index its own.
        shared: by SHA-256 what `duplicates.jsonl` says, to be counted in the indexes; empty for
            nothing.
    """

    root: str
    examples: ExampleRules
    orders: dict[str, Order]
    seed: int
    reads: bool
    hashes: bool
    converted: frozenset[str]
    access: Access = DEFAULT_ACCESS
    has_sums: bool = True
    shared: dict[str, SharedContent] = field(default_factory=dict)


class SharedCount(msgspec.Struct, array_like=True):
    """Records of one content in the indexes of a split.

    Attributes:
        records: made of it.
        named: of those, which `duplicates.jsonl` names.
    """

    records: int = 0
    named: int = 0


class ShardReport(msgspec.Struct):
    """What was found in a shard.

    Attributes:
        findings: what is wrong.
        records: whole ones.
        read_bytes: read of it.
        ends: order key of the first and the last record by the index; none where it has no order.
        keys: 16 bytes of a digest of each key, of a split in the input's order.
        too_large: records that were checksummed, but not looked into.
        shared: records by SHA-256, of the contents that the rules ask for.
    """

    findings: Findings = msgspec.field(default_factory=Findings)
    records: int = 0
    read_bytes: int = 0
    ends: tuple[OrderKey, OrderKey] | None = None
    keys: list[bytes] = []
    too_large: int = 0
    shared: dict[str, SharedCount] = {}


class ShardEnds(msgspec.Struct, frozen=True, array_like=True):
    """Where a shard begins and ends in its split's order.

    Attributes:
        place: of the shard in the manifest, from 0.
        split: of it.
        file: its name.
        first: order key of its first record.
        last: of its last one.
    """

    place: int
    split: str
    file: str
    first: OrderKey
    last: OrderKey


class Twice(msgspec.Struct, frozen=True, array_like=True):
    """Keys of a shard that an earlier shard of its split, or it itself, has too."""

    place: int
    split: str
    file: str
    keys: int


class ShardsFound(msgspec.Struct):
    """What was found in shards; what was found in those behind them adds up.

    Attributes:
        findings: what is wrong with them.
        shards: how many there are.
        records: whole ones.
        read_bytes: read of them.
        too_large: records that were checksummed, but not looked into.
        ends: of those that have an order.
        shared: records by split and SHA-256, of the contents that the rules ask for.
    """

    findings: Findings = msgspec.field(default_factory=Findings)
    shards: int = 0
    records: int = 0
    read_bytes: int = 0
    too_large: int = 0
    ends: list[ShardEnds] = []
    shared: dict[str, dict[str, SharedCount]] = {}

    def add(self, task: ShardTask, report: ShardReport) -> None:
        """Add a shard's report."""
        split = task.entry.split
        self.findings.extend(report.findings)
        self.shards += 1
        self.records += report.records
        self.read_bytes += report.read_bytes
        self.too_large += report.too_large
        if report.ends is not None:
            self.ends.append(ShardEnds(task.place, split, task.entry.file, *report.ends))
        if report.shared:
            self._add_shared(split, report.shared)

    def extend(self, other: "ShardsFound") -> None:
        """Add what was found in the shards behind these."""
        self.findings.extend(other.findings)
        self.shards += other.shards
        self.records += other.records
        self.read_bytes += other.read_bytes
        self.too_large += other.too_large
        self.ends += other.ends
        for split, shared in other.shared.items():
            self._add_shared(split, shared)

    def _add_shared(self, split: str, shared: Mapping[str, SharedCount]) -> None:
        counts = self.shared.setdefault(split, {})
        for sha256, found in shared.items():
            known = counts.setdefault(sha256, SharedCount())
            known.records += found.records
            known.named += found.named


def find_twice(shards: Iterable[tuple[int, str, str, Iterable[bytes]]]) -> list[Twice]:
    """Return how many keys of each shard come twice, of shards that have some.

    Args:
        shards: place, split, file and keys of each, by ascending place; of a shard all keys, or
            those of a partition, of which another call tells.

    >>> find_twice([(0, "train", "a", [b"x", b"y"]), (1, "train", "b", [b"z", b"x", b"x"])])
    [Twice(place=1, split='train', file='b', keys=2)]
    """
    seen: dict[str, set[bytes]] = {}
    found: list[Twice] = []
    for place, split, file, keys in shards:
        known, given = seen.setdefault(split, set()), list(keys)
        new = {*given} - known
        if len(new) < len(given):
            found.append(Twice(place, split, file, len(given) - len(new)))
        known |= new
    return found


def order_findings(ends: Iterable[ShardEnds], twice: Iterable[Twice], seed: int) -> Findings:
    """Return which shards hold a key again, or begin before one in front of them ends.

    Args:
        ends: of all shards that have an order, by place.
        twice: keys that come twice, in any order and any parts.
        seed: of the shuffle.
    """
    findings = Findings()
    counts: Counter[tuple[int, str, str]] = Counter()
    for found in twice:
        counts[found.place, found.split, found.file] += found.keys
    for (_, split, file), keys in sorted(counts.items()):
        what = f"{keys} of its keys come twice in split {split}"
        findings.add("E-VER-ORDER", file, what, RESTORE)
    last: dict[str, OrderKey] = {}
    for shard in ends:
        before = last.get(shard.split)
        if before is not None and before >= shard.first:
            where = at_record(shard.file, 0, 0, shard.first[1])
            fault = order_fault(before[1], shard.first[1], seed)
            findings.add("E-VER-ORDER", where, *fault)
        last[shard.split] = shard.last
    return findings


def order_fault(before: str, key: str, seed: int) -> tuple[str, str]:
    """Return what is wrong where a record stands behind one that it must precede."""
    if before == key:
        return "its key comes twice", RESTORE
    return f"by seed {seed} it comes before the one of key {before!r}, not behind it", RESTORE


def add_shards(found: Verified, shards: ShardsFound, twice: Iterable[Twice], seed: int) -> None:
    """Add what was found in all shards of a data set to what was found around them."""
    found.findings.extend(order_findings(shards.ends, twice, seed))
    found.findings.extend(shards.findings)
    found.records += shards.records
    found.bytes += shards.read_bytes
    if shards.too_large:
        found.notes += (f"{shards.too_large} records are too large to be looked into",)
