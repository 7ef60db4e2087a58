"""How many shards a split has, and what of its order is in each: from counts alone.

Output bytes depend on every function here: changing a recipe is a breaking change and raises the
format version.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.manifest import PlannedSplit
from beam_tfrec.schemas.samples import Order
from beam_tfrec.transforms.sources.list_blobs import DIGEST_MODULUS

_LOG = logging.getLogger(__name__)

DEFAULT_SHARD_BYTES = 150_000_000
MIN_SHARDS = 16
MIN_RECORDS_TO_SPREAD = 64

Bucket = tuple[str, int]
"""A split and a stretch of its order."""
Shard = tuple[str, int]
"""A split and the index of one of its shards."""


@dataclass(frozen=True)
class Sharding:
    """How many shards, and in which order; per split where a mapping has it, else for all (`""`).

    Attributes:
        num_shards: shards per split; a multiple of `hosts`.
        records_per_shard: records of every shard but the last; excludes the others.
        shard_bytes: output bytes to aim at, where neither of them is given; None for the default,
            which comes with a least number of shards.
        hosts: hosts that will read `files[h::hosts]`.
        order: order per split.
        seed: of the shuffle.
    """

    num_shards: Mapping[str, int] = field(default_factory=dict)
    records_per_shard: int | None = None
    shard_bytes: int | None = None
    hosts: int = 1
    order: Mapping[str, Order] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that could not be planned."""
        numbers = [("num_shards", n) for n in self.num_shards.values()]
        numbers.append(("hosts", self.hosts))
        if self.shard_bytes is not None:
            numbers.append(("shard_size", self.shard_bytes))
        if self.records_per_shard is not None:
            numbers.append(("records_per_shard", self.records_per_shard))
        for name, number in numbers:
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}: give a larger number")
        if len(str(self.seed)) > hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError(f"seed must be at most 64 digits, got {self.seed}: give a smaller one")
        if self.records_per_shard is not None and self.hosts > 1:
            raise ValueError(
                f"records_per_shard {self.records_per_shard} fills shards one by one, which gives"
                f" no multiple of hosts {self.hosts}: give num_shards instead"
            )
        for number in self.num_shards.values():
            if number % self.hosts:
                below, above = number - number % self.hosts, number + -number % self.hosts
                raise ValueError(
                    f"num_shards must be a multiple of hosts {self.hosts}, got {number}:"
                    f" give {f'{below} or ' if below else ''}{above}"
                )
        if self.num_shards and self.records_per_shard is not None:
            raise ValueError(
                f"num_shards {dict(self.num_shards)} and records_per_shard"
                f" {self.records_per_shard} exclude each other: give one"
            )

    def order_of(self, split: str) -> Order:
        """Return a split's order."""
        return self.order.get(split, self.order.get("", Order.SHUFFLED))

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes, for the plan."""
        orders = {"all": self.order_of("").value}
        orders |= {split: order.value for split, order in self.order.items() if split}
        shards = {split or "all": number for split, number in self.num_shards.items()}
        by_size = not shards and self.records_per_shard is None
        size = f"{DEFAULT_SHARD_BYTES}"
        if self.shard_bytes is not None:  # the same number, given, may make fewer shards
            size = f"{self.shard_bytes} as given"
        return {
            "hosts": str(self.hosts) if by_size else "",
            "num_shards": _as_text(shards),
            "order": _as_text(orders),
            "records_per_shard": str(self.records_per_shard or ""),
            "seed": str(self.seed),
            "shard_size": size if by_size else "",
        }


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """The samples of a bucket: their number, estimated output bytes, `members_digest` in hex."""

    samples: int
    bytes: int
    digest: str


class Ranks(msgspec.Struct, frozen=True):
    """Where a split's buckets stand in its order.

    Attributes:
        planned: samples and shards of the split.
        full: records of a full shard where shards are filled one by one, else 0 for equal shares.
        buckets: rank of the first sample, and what is held, of each bucket with samples, by its
            number as text: a coder of dicts asks for that.
    """

    planned: PlannedSplit
    full: int
    buckets: dict[str, tuple[int, Tally]]

    def shard_of(self, rank: int) -> tuple[int, int]:
        """Return (shard, place in it) of a rank."""
        if self.full:
            return divmod(rank, self.full)
        base, extra = divmod(self.planned.samples, self.planned.shards)
        larger = extra * (base + 1)  # samples of the first shards, which hold one more
        if rank < larger:
            return divmod(rank, base + 1)
        shard, place = divmod(rank - larger, base)
        return extra + shard, place

    def shard_samples(self, index: int) -> int:
        """Return how many samples a shard holds."""
        if self.full:
            return min(self.full, self.planned.samples - index * self.full)
        base, extra = divmod(self.planned.samples, self.planned.shards)
        return base + (index < extra)


class ShardTable(msgspec.Struct, frozen=True):
    """The plan without its samples: ranks per split, and the digest of all samples, hex."""

    splits: dict[str, Ranks]
    digest: str

    def planned(self, split: str) -> PlannedSplit:
        """Return a split's samples and shards; none when no sample of it is left."""
        return self.splits[split].planned if split in self.splits else PlannedSplit(0, 0)


def count_shards(split: str, total: int, output_bytes: int, sharding: Sharding) -> int:
    """Return a split's number of shards; log it where the default's least number decides.

    Args:
        split: its name.
        total: its samples, at least 1.
        output_bytes: estimated size of all its records.
        sharding: what was asked for.

    Raises:
        ValueError: `E-ARG` when more shards are asked for than there are samples.

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
            text = "split %s: %d shards, the least by default; for fewer give --shard_size"
            _LOG.info(text, split, asked)
    else:
        what = f"--num_shards {asked}"
    if asked > total:
        largest = total - total % sharding.hosts
        remedy = f"give at most --num_shards {largest}" if largest else "give fewer --hosts"
        where = f"split {split}"
        raise ValueError(fault_line("E-ARG", where, f"{what}, but {total} samples", remedy))
    return asked


def add_tallies(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of tallies."""
    parts = list(tallies)
    digest = sum(int(part.digest, 16) for part in parts) % DIGEST_MODULUS
    counts, sizes = (part.samples for part in parts), (part.bytes for part in parts)
    return Tally(sum(counts), sum(sizes), f"{digest:x}")


def make_shard_table(tallies: Collection[tuple[Bucket, Tally]], sharding: Sharding) -> ShardTable:
    """Return the plan of all splits from the tallies of their buckets.

    Raises:
        ValueError: `E-ARG` when more shards are asked for than there are samples.
    """
    by_split: dict[str, dict[int, Tally]] = {}
    for (split, bucket), tally in sorted(tallies):
        by_split.setdefault(split, {})[bucket] = tally
    splits: dict[str, Ranks] = {}
    for split, buckets in by_split.items():
        total = add_tallies(buckets.values())
        num_shards = count_shards(split, total.samples, total.bytes, sharding)
        full = min(sharding.records_per_shard or 0, total.samples)
        ranks = Ranks(PlannedSplit(total.samples, num_shards), full, {})
        rank = 0
        for bucket, tally in buckets.items():
            ranks.buckets[str(bucket)] = rank, tally
            rank += tally.samples
        splits[split] = ranks
    every = add_tallies(tally for _, tally in tallies)
    return ShardTable(splits, f"{int(every.digest, 16):064x}")


def _as_text(values: Mapping) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(values.items()))
