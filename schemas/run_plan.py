"""`RunPlan`: what a run is going to make, as `--plan` tells it before anything is written."""

from collections.abc import Mapping, Sequence

import msgspec


class ShardForecast(msgspec.Struct, frozen=True, array_like=True):
    """One shard: records as planned, and about how many bytes its file gets."""

    records: int
    bytes: int


class Spread(msgspec.Struct, frozen=True):
    """The least, the middle and the most of some numbers."""

    least: int
    median: int
    most: int


class Known(msgspec.Struct, frozen=True):
    """Samples or annotations that are known not to be written, for one reason.

    Attributes:
        count: of them.
        first: the first of them, in the words of the log.
    """

    count: int
    first: str


class ClassSizes(msgspec.Struct, frozen=True):
    """What samples are of, or their objects.

    Attributes:
        number: of classes in the label map.
        samples: of each; None where no sample tells, or no class has any.
        least_of: a class with the least of them.
        most_of: a class with the most of them.
    """

    number: int
    samples: Spread | None = None
    least_of: str = ""
    most_of: str = ""


class SplitForecast(msgspec.Struct, frozen=True):
    """One split of the data set.

    Attributes:
        listed: samples that its sources list.
        images: that they list, where a sample is an object of one; else None.
        planned: samples that go into shards, a record each.
        left_out: samples left out on request, by filter; `excluded`, `earlier`.
        rejected: samples that are rejects already, by code.
        dropped: annotations that are, by code.
        shards: in their order.
        bytes: of them, together.
        hosts: numbers of hosts that `files[h::hosts]` serves alike: as many files each, and records
            that differ by one at most.
        copies_per_image: how many records hold an image of which any does, where a sample is an
            object of one; else None.
        classes: None where there are none.
    """

    listed: int
    images: int | None
    planned: int
    left_out: dict[str, int]
    rejected: dict[str, Known]
    dropped: dict[str, Known]
    shards: list[ShardForecast]
    bytes: int
    hosts: list[int]
    copies_per_image: float | None = None
    classes: ClassSizes | None = None


class Sampled(msgspec.Struct, frozen=True):
    """Records that were built of their images, to learn the size of what is converted.

    Attributes:
        records: that were built.
        rejected: of them, samples that would be rejects, by code.
    """

    records: int
    rejected: dict[str, Known]


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is going to make.

    Attributes:
        output: URI of the data set.
        state: of the output: `free`, `ours` (begun by the same plan), `complete`, `overwritten`
            (another data set is there, and goes), or `refused`.
        shards_there: shards that are finished, in an output that is ours.
        splits: by name.
        sampled: what sizes were estimated from.
        read_files: files that are read; a file that serves two samples counts twice.
        read_bytes: of them.
        written_files: side files included.
        written_bytes: of them.
        notes: what to think of before running it, a line each.
        refused: the line of the fault with which the run would end before its first shard.
    """

    output: str
    state: str
    shards_there: int
    splits: dict[str, SplitForecast]
    sampled: Sampled
    read_files: int
    read_bytes: int
    written_files: int
    written_bytes: int
    notes: list[str] = []
    refused: str = ""


def spread_of(numbers: Sequence[int]) -> Spread | None:
    """Return the spread of some numbers; None of none.

    >>> spread_of([5, 1, 2])
    Spread(least=1, median=2, most=5)
    """
    if not numbers:
        return None
    in_order = sorted(numbers)
    return Spread(in_order[0], in_order[(len(in_order) - 1) // 2], in_order[-1])


def served_hosts(records: Sequence[int]) -> list[int]:
    """Return the numbers of hosts among which shards can be dealt in turn, alike to all.

    Args:
        records: of each shard.

    >>> served_hosts([3, 3, 3, 2]), served_hosts([4, 4, 1]), served_hosts([])
    ([1, 2, 4], [1], [])
    """
    count = len(records)
    small = [n for n in range(1, int(count**0.5) + 1) if count % n == 0]
    divisors = sorted({*small, *(count // n for n in small)})
    return [hosts for hosts in divisors if _is_alike(records, hosts)]


def _is_alike(records: Sequence[int], hosts: int) -> bool:
    of_hosts = [sum(records[host::hosts]) for host in range(hosts)]
    return max(of_hosts) - min(of_hosts) <= 1


def class_sizes(number: int, samples: Mapping[str, int]) -> ClassSizes | None:
    """Return the sizes of classes.

    Args:
        number: of classes in the label map.
        samples: of each that has any, by name.

    >>> class_sizes(3, {"cat": 2, "dog": 5}).least_of
    'cat'
    """
    if not number:
        return None
    found = spread_of([*samples.values()])
    if found is None:
        return ClassSizes(number)
    in_order = sorted(samples, key=lambda name: (samples[name], name))
    return ClassSizes(number, found, in_order[0], in_order[-1])
