"""What is asked of a shard, and the report on a shard, its sources, or a file of any origin."""

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from schemas.example_rules import ExampleRules, InferredSchema
from schemas.faults import Findings
from schemas.manifest import ShardEntry
from schemas.samples import Order
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

    def add(self, other: "SharedCount") -> None:
        """Add another shard's records."""
        self.records += other.records
        self.named += other.named


class Report(msgspec.Struct):
    """What was found in a shard, in its sources, or in a file of any origin.

    Attributes:
        findings: what is wrong.
        files: files looked at: 1 but for sources.
        records: whole ones.
        read_bytes: bytes read of it.
        too_large: records that were checksummed, but not looked into.
        notes: what else is to be said of a file.
        schema: of a file's records.
        ends: order key of a shard's first and last record by the index; None without an order.
        keys: 16 bytes of a digest of each key, of a split in the input's order.
        shared: records by SHA-256, of the contents that the rules ask for.
    """

    findings: Findings = msgspec.field(default_factory=Findings)
    files: int = 0
    records: int = 0
    read_bytes: int = 0
    too_large: int = 0
    notes: list[str] = []
    schema: InferredSchema = msgspec.field(default_factory=InferredSchema)
    ends: tuple[OrderKey, OrderKey] | None = None
    keys: list[bytes] = []
    shared: dict[str, SharedCount] = {}

    def add(self, other: "Report") -> None:
        """Add the findings, counts and notes of the report on what comes next."""
        self.findings.extend(other.findings)
        self.files += other.files
        self.records += other.records
        self.read_bytes += other.read_bytes
        self.too_large += other.too_large
        self.notes += other.notes


def order_fault(before: str, key: str, seed: int) -> tuple[str, str]:
    """Return what is wrong, and the remedy, where a record follows one that it must precede."""
    if before == key:
        return "its key comes twice", RESTORE
    return f"by seed {seed} it comes before the one of key {before!r}, not after it", RESTORE
