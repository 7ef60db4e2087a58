"""Divide the records of shards among hosts, and count batches: pure arithmetic."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from beam_tfrec.schemas.faults import require_whole

STOPPING_STRATEGIES: Mapping[str, Callable[[Iterable[float]], float]] = {
    "first_exhausted": min,
    "all_exhausted": max,
}
"""Ends of mixtures: when one data set, or each of them, was read to its end."""

MOST_MIXED_RECORDS = 1_000_000_000
"""Largest mixture with an end, since readers hold the order of its records."""


class Part(NamedTuple):
    """Consecutive records of a shard.

    Attributes:
        shard: number of the shard in its split, from 0.
        first: number of the first record, from 0.
        stop: number of the last record plus one.
    """

    shard: int
    first: int
    stop: int

    @property
    def records(self) -> int:
        """The number of records."""
        return self.stop - self.first


def deal(
    records: Sequence[int], host: int = 0, hosts: int = 1, *, drop_remainder: bool = False
) -> list[Part]:
    """Return the parts of shards that a host reads, in the order of the shards.

    Hosts get equal numbers of records (±1). With `drop_remainder` the numbers are equal, and no
    host reads the remaining `sum(records) % hosts` records.

    Args:
        records: number of records in each shard.
        host: number of this host, from 0.
        hosts: number of hosts.
        drop_remainder: give all hosts the same number of records.

    Raises:
        ValueError: `host` is not below `hosts`.

    >>> deal([3, 3, 3, 2], 0, 2), deal([3, 3, 3, 2], 1, 2)
    ([Part(shard=0, first=0, stop=3), Part(shard=2, first=0, stop=3)], [Part(shard=1, first=0, \
stop=3), Part(shard=3, first=0, stop=2)])
    >>> deal([4, 2], 0, 2), deal([4, 2], 1, 2)
    ([Part(shard=0, first=0, stop=3)], [Part(shard=0, first=3, stop=4), Part(shard=1, first=0, \
stop=2)])
    """
    require_whole(host=host, hosts=hosts)
    if not 0 <= host < hosts:
        raise ValueError(f"host must be at least 0 and below hosts, got host={host}, hosts={hosts}")
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


def mixed_records(
    records: Sequence[int], weights: Sequence[float], stopping_strategy: str | None
) -> list[int]:
    """Return how many records a mixture takes from each data set until it ends.

    Args:
        records: number of records in each data set; it starts again if more are taken.
        weights: weight of each data set.
        stopping_strategy: one of `STOPPING_STRATEGIES`.

    Raises:
        ValueError: There is no strategy, so the mixture has no end; a data set has no records; or
            the end is too far, since readers hold the order of all records.

    >>> mixed_records([100, 10], [3.0, 1.0], "first_exhausted")
    [30, 10]
    >>> mixed_records([100, 10], [3.0, 1.0], "all_exhausted")
    [100, 33]
    """
    if stopping_strategy is None:
        raise ValueError("stopping_strategy must be given with weights: their mixture has no end")
    if 0 in records:
        raise ValueError(f"each data set must have records for the host, got {[*records]}: omit it")
    ratios = [count / weight for count, weight in zip(records, weights, strict=True)]
    ratio = STOPPING_STRATEGIES[stopping_strategy](ratios)
    taken = [round(ratio * weight) for weight in weights]
    if sum(taken) > MOST_MIXED_RECORDS:
        what = f"weights must give at most {MOST_MIXED_RECORDS:,} records, got {sum(taken):,}"
        raise ValueError(f"{what}: give a larger weight to small data sets, or first_exhausted")
    return taken


def num_batches(records: int, batch_size: int, *, drop_remainder: bool) -> int:
    """Return the number of batches of a host's records; `drop_remainder` leaves out a short one.

    >>> num_batches(1000, 64, drop_remainder=False), num_batches(1000, 64, drop_remainder=True)
    (16, 15)
    """
    return records // batch_size if drop_remainder else -(-records // batch_size)


def drops_remainder(hosts: int, drop_remainder: bool | None) -> bool:
    """Return whether hosts read equal numbers of records and only full batches.

    None is the default of `load` and `steps_per_epoch`: only with several hosts.
    """
    return hosts != 1 if drop_remainder is None else drop_remainder


def _due(have: Sequence[int], drop_remainder: bool) -> list[int]:
    """Return the number of records for each host; a remainder goes to the hosts with most."""
    base, extra = divmod(sum(have), len(have))
    if drop_remainder:
        return [base] * len(have)
    richest = sorted(range(len(have)), key=lambda host: (-have[host], host))[:extra]
    return [base + (host in richest) for host in range(len(have))]


def _take_from_end(parts: list[Part], wanted: int) -> list[Part]:
    """Remove up to `wanted` records from the end of parts, and return them."""
    taken: list[Part] = []
    while wanted > 0 and parts:
        shard, first, stop = parts.pop()
        cut = max(first, stop - wanted)
        if cut > first:
            parts.append(Part(shard, first, cut))
        taken.append(Part(shard, cut, stop))
        wanted -= stop - cut
    return taken
