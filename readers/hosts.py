"""Deal a split's records to hosts: disjoint, together all, and as many each.

Whole shards go to hosts in turn, as `files[host::hosts]` would. Where that is not even, because
rejects left some shards short or their number is no multiple of the hosts', what some have too much
goes from the end of their last shards to those that have too little.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """Consecutive records of a shard.

    Attributes:
        shard: its place among the split's shards.
        first: the first record, from 0.
        stop: the one behind the last.
    """

    shard: int
    first: int
    stop: int

    @property
    def records(self) -> int:
        """How many they are."""
        return self.stop - self.first


def deal(
    records: Sequence[int], host: int = 0, hosts: int = 1, *, drop_remainder: bool = False
) -> list[Part]:
    """Return what a host reads, in the order of the shards.

    Counts of two hosts differ by one at most; with `drop_remainder` they do not, and the last
    `sum(records) % hosts` records that nobody was due are read by none.

    Args:
        records: of each shard.
        host: this host, from 0.
        hosts: their number.
        drop_remainder: whether all hosts get equally many.

    Raises:
        ValueError: when there is no such host.

    >>> deal([3, 3, 3, 2], 0, 2), deal([3, 3, 3, 2], 1, 2)
    ([Part(shard=0, first=0, stop=3), Part(shard=2, first=0, stop=3)], [Part(shard=1, first=0, \
stop=3), Part(shard=3, first=0, stop=2)])
    >>> deal([4, 2], 0, 2), deal([4, 2], 1, 2)
    ([Part(shard=0, first=0, stop=3)], [Part(shard=0, first=3, stop=4), Part(shard=1, first=0, \
stop=2)])
    """
    check_host(host, hosts)
    dealt = [
        [Part(shard, 0, records[shard]) for shard in range(first, len(records), hosts)]
        for first in range(hosts)
    ]
    due = _due([sum(part.records for part in parts) for parts in dealt], drop_remainder)
    spare: list[Part] = []
    for parts, wanted in zip(dealt, due, strict=True):
        spare += _take_from_end(parts, sum(part.records for part in parts) - wanted)
    for parts, wanted in zip(dealt, due, strict=True):
        parts += _take_from_end(spare, wanted - sum(part.records for part in parts))
    return sorted(part for part in dealt[host] if part.records)


def drops_remainder(asked: bool | None, hosts: int) -> bool:
    """Return whether to drop the remainder: as asked, by default where there are several hosts."""
    return hosts > 1 if asked is None else asked


def steps(
    records: int, global_batch: int, hosts: int = 1, *, drop_remainder: bool | None = None
) -> int:
    """Return how many batches every host reads of a split in an epoch.

    Args:
        records: of the split.
        global_batch: records of a batch, on all hosts together.
        hosts: their number.
        drop_remainder: see `drops_remainder`. Without it the last batch may be short, and some
            hosts may have one batch more.

    Raises:
        ValueError: when the hosts cannot share a batch, or a host would have none.

    >>> steps(1000, 64, 8), steps(1000, 64), steps(1000, 64, drop_remainder=True)
    (15, 16, 15)
    """
    check_host(0, hosts)
    if global_batch < 1 or global_batch % hosts:
        raise ValueError(
            f"global_batch must be a multiple of hosts, got {global_batch} and {hosts}: each host"
            " reads batches of global_batch / hosts"
        )
    whole, left = divmod(records // hosts, global_batch // hosts)
    count = whole + (left > 0 and not drops_remainder(drop_remainder, hosts))
    if not count:
        raise ValueError(
            f"global_batch must be at most the split's {records} records, got {global_batch} for"
            f" {hosts} hosts: give a smaller one"
        )
    return count


def check_host(host: int, hosts: int) -> None:
    """Refuse a host that there is not.

    Raises:
        ValueError: with the value and the remedy.
    """
    if hosts < 1:
        raise ValueError(f"hosts must be at least 1, got {hosts}: give their number")
    if not 0 <= host < hosts:
        raise ValueError(f"host must be 0 to {hosts - 1}, got {host}: hosts are counted from 0")


def _due(have: Sequence[int], drop_remainder: bool) -> list[int]:
    """Return how many records each is to have; those that have most get one more, if any do."""
    base, extra = divmod(sum(have), len(have))
    if drop_remainder:
        return [base] * len(have)
    richest = sorted(range(len(have)), key=lambda host: (-have[host], host))[:extra]
    return [base + (host in richest) for host in range(len(have))]


def _take_from_end(parts: list[Part], wanted: int) -> list[Part]:
    """Remove so many records from the end of parts, and return them."""
    taken: list[Part] = []
    while wanted > 0 and parts:
        shard, first, stop = parts.pop()
        cut = max(first, stop - wanted)
        if cut > first:
            parts.append(Part(shard, first, cut))
        taken.append(Part(shard, cut, stop))
        wanted -= stop - cut
    return taken
