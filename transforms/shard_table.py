"""Compute from counts alone how many shards a split has, and which ranks each shard gets.

Output bytes depend on every function in this file. A change of a formula is a breaking change, and
needs a new format version.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from beam_tfrec.schemas.faults import counted, require_at_least, require_whole, run_fault
from beam_tfrec.schemas.manifest import PlannedSplit
from beam_tfrec.schemas.samples import Order
from beam_tfrec.schemas.splits import split_without_bucket
from beam_tfrec.transforms.sources.listing import DIGEST_MODULUS

_LOG = logging.getLogger(__name__)

DEFAULT_SHARD_BYTES = 150_000_000
MIN_SHARDS = 16
MIN_RECORDS_TO_SPREAD = 64

KeyRange = tuple[str, int]
"""A split, and the number of a range of its order keys."""
ShardKey = tuple[str, int]
"""A split and the index of one of its shards."""


@dataclass(frozen=True)
class Sharding:
    """Number of shards, and order of records. The mappings are by split; `""` is for all others.

    Attributes:
        num_shards: number of shards; a multiple of `hosts`.
        records_per_shard: records of every shard except the last; instead of `num_shards`.
        shard_bytes: target size of a shard, used without the two attributes above; None for the
            default size, with at least `MIN_SHARDS` shards.
        hosts: number of hosts that read; host `h` reads `files[h::hosts]`.
        order: order of the records.
        seed: seed of the shuffle.
    """

    num_shards: Mapping[str, int] = field(default_factory=dict)
    records_per_shard: int | None = None
    shard_bytes: int | None = None
    hosts: int = 1
    order: Mapping[str, Order] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that contradict each other or are out of range."""
        require_at_least(1, hosts=self.hosts, shard_size=self.shard_bytes)
        require_at_least(1, records_per_shard=self.records_per_shard)
        require_whole(seed=self.seed)
        if len(str(self.seed)) > hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError(f"seed must be at most 64 digits, got {self.seed}: give a smaller one")
        if self.records_per_shard is not None and self.hosts > 1:
            what = f"records_per_shard {self.records_per_shard} cannot promise a number of shards"
            what += f" that is a multiple of hosts {self.hosts}"
            raise ValueError(f"{what}: give num_shards instead")
        for number in self.num_shards.values():
            require_at_least(1, num_shards=number)
            if number % self.hosts:
                below, above = number - number % self.hosts, number + -number % self.hosts
                what = f"num_shards must be a multiple of hosts {self.hosts}, got {number}"
                raise ValueError(f"{what}: give {f'{below} or ' if below else ''}{above}")
        if self.num_shards and self.records_per_shard is not None:
            raise ValueError("num_shards must come without records_per_shard, got both: give one")

    def order_of(self, split: str) -> Order:
        """Return a split's order."""
        return self.order.get(split, self.order.get("", Order.SHUFFLED))

    def options(self) -> dict[str, str]:
        """Return the options that decide output bytes, for the plan."""
        orders = {"all": self.order_of("").value}
        orders |= {split: order.value for split, order in self.order.items() if split}
        shards = {split or "all": number for split, number in self.num_shards.items()}
        by_size = not shards and self.records_per_shard is None
        size = f"{DEFAULT_SHARD_BYTES}"
        if self.shard_bytes is not None:  # then MIN_SHARDS does not apply
            size = f"{self.shard_bytes} as given"
        return {
            "hosts": str(self.hosts) if by_size else "",
            "num_shards": _as_text(shards),
            "order": _as_text(orders),
            "records_per_shard": str(self.records_per_shard or ""),
            "seed": str(self.seed),
            "shard_size": size if by_size else "",
        }


class RangeTally(msgspec.Struct, frozen=True, array_like=True):
    """Counts of samples: their number, estimated output bytes, `members_digest` in hex."""

    samples: int
    bytes: int
    digest: str


class Ranks(msgspec.Struct, frozen=True):
    """Ranks of a split's ranges.

    Attributes:
        planned: numbers of samples and shards of the split.
        full: records of every shard but the last; 0 for shards of equal size (±1).
        ranges: rank of the first sample, and tally, of each range with samples. The keys are the
            ranges' numbers as text, since coders of dicts need text keys.
    """

    planned: PlannedSplit
    full: int
    ranges: dict[str, tuple[int, RangeTally]]

    def shard_of(self, rank: int) -> tuple[int, int]:
        """Return the shard of a rank, and the record's index in it."""
        if self.full:
            return divmod(rank, self.full)
        base, extra = divmod(self.planned.samples, self.planned.shards)
        larger = extra * (base + 1)  # samples in the first shards, which have one more each
        if rank < larger:
            return divmod(rank, base + 1)
        shard, index = divmod(rank - larger, base)
        return extra + shard, index

    def shard_samples(self, index: int) -> int:
        """Return the number of samples of a shard."""
        if self.full:
            return min(self.full, self.planned.samples - index * self.full)
        base, extra = divmod(self.planned.samples, self.planned.shards)
        return base + (index < extra)


class ShardTable(msgspec.Struct, frozen=True):
    """How many samples and shards each split has, and the ranks of its ranges.

    Attributes:
        splits: ranks by split.
        digest: digest of all samples, hex.
    """

    splits: dict[str, Ranks]
    digest: str

    def planned(self, split: str) -> PlannedSplit:
        """Return a split's numbers of samples and shards; zeros if it has no samples."""
        return self.splits[split].planned if split in self.splits else PlannedSplit(0, 0)


def count_shards(split: str, total: int, output_bytes: int, sharding: Sharding) -> int:
    """Return a split's number of shards; log it if `MIN_SHARDS` decides.

    Args:
        split: name of the split.
        total: number of samples, at least 1.
        output_bytes: estimated size of all records.
        sharding: options that the user gave.

    Raises:
        RuntimeError: `E-ARG` when there would be more shards than samples.

    >>> count_shards("train", 118_287, 19_000_000_000, Sharding(hosts=8))
    128
    """
    asked = sharding.num_shards.get(split, sharding.num_shards.get(""))
    if asked is None and sharding.records_per_shard is not None:
        return -(-total // sharding.records_per_shard)
    if asked is None:
        shard_bytes = sharding.shard_bytes or DEFAULT_SHARD_BYTES
        by_size = wanted = max(1, -(-output_bytes // shard_bytes))
        if sharding.shard_bytes is None and total >= MIN_SHARDS * MIN_RECORDS_TO_SPREAD:
            wanted = max(wanted, MIN_SHARDS)
        asked = -(-wanted // sharding.hosts) * sharding.hosts
        what = f"--shard_size {shard_bytes} and --hosts {sharding.hosts} make {asked} shards"
        if wanted > by_size:
            text = "split %s: %d shards, the default minimum; for fewer give --shard_size"
            _LOG.info(text, split, asked)
    else:
        what = f"--num_shards {asked}"
    if asked > total:
        largest = total - total % sharding.hosts
        remedy = f"give at most --num_shards {largest}" if largest else "give fewer --hosts"
        if split != split_without_bucket(split):
            remedy += ", or leave this size out of --buckets"
        what += f", but {counted(total, 'sample')} to write"
        raise run_fault("E-ARG", f"split {split}", what, remedy)
    return asked


def add_tallies(tallies: Iterable[RangeTally]) -> RangeTally:
    """Add tallies."""
    parts = list(tallies)
    digest = sum(int(part.digest, 16) for part in parts) % DIGEST_MODULUS
    counts, sizes = (part.samples for part in parts), (part.bytes for part in parts)
    return RangeTally(sum(counts), sum(sizes), f"{digest:x}")


def make_shard_table(
    tallies: Collection[tuple[KeyRange, RangeTally]], sharding: Sharding
) -> ShardTable:
    """Compute the ranks of all ranges from their tallies.

    Raises:
        RuntimeError: `E-ARG` when a split would have more shards than samples.
    """
    by_split: dict[str, dict[int, RangeTally]] = {}
    for (split, number), tally in sorted(tallies):
        by_split.setdefault(split, {})[number] = tally
    splits: dict[str, Ranks] = {}
    for split, ranges in by_split.items():
        total = add_tallies(ranges.values())
        num_shards = count_shards(split, total.samples, total.bytes, sharding)
        full = min(sharding.records_per_shard or 0, total.samples)
        ranks = Ranks(PlannedSplit(total.samples, num_shards), full, {})
        rank = 0
        for number, tally in ranges.items():
            ranks.ranges[str(number)] = rank, tally
            rank += tally.samples
        splits[split] = ranks
    every = add_tallies(tally for _, tally in tallies)
    return ShardTable(splits, f"{int(every.digest, 16):064x}")


def _as_text(values: Mapping) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(values.items()))
