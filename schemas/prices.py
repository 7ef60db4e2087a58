"""What Google Cloud charges a unit, with the date: a table of list prices, and one of a user's own.

Prices are list prices in USD, before taxes, free tiers, committed use and other discounts, of a
region like us-central1. Other regions differ, most by up to a third. A GB is 2^30 bytes, as Google
counts.

Sources: https://cloud.google.com/dataflow/pricing, https://cloud.google.com/storage/pricing,
https://cloud.google.com/vpc/network-pricing. On the day in the table these were compared with what
the second page said: storage, operations of the STANDARD class, retrieval and internet. The others
are older readings of the same pages; compare them before large sums hang on them.
"""

import datetime
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

STORAGE_CLASSES = ("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE")
MIN_STORAGE_DAYS: Mapping[str, int] = {"NEARLINE": 30, "COLDLINE": 90, "ARCHIVE": 365}
"""How long an object of a class is billed at least, deleted or rewritten earlier or not."""

_DATE = re.compile(r"20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])")


class Dataflow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Batch jobs.

    Attributes:
        vcpu_hour: of a worker.
        memory_gb_hour: of a worker.
        disk_gb_hour: of a worker's standard persistent disk.
        shuffle_gb: written to or read from Dataflow Shuffle.
    """

    vcpu_hour: float
    memory_gb_hour: float
    disk_gb_hour: float
    shuffle_gb: float


class Storage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cloud Storage, each by storage class.

    Attributes:
        class_a_1000: a thousand operations that list or create.
        class_b_1000: a thousand operations that read.
        retrieval_gb: read, beside the operation.
        gb_month: kept.
    """

    class_a_1000: dict[str, float]
    class_b_1000: dict[str, float]
    retrieval_gb: dict[str, float]
    gb_month: dict[str, float]


class Transfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GB carried between a bucket and a job; within one region it is free.

    Attributes:
        within: between regions of one continent, or one and a multi-region that holds it, by
            continent.
        between: of two continents, as `asia europe`, in the order of the alphabet; `other` for
            those that are not named.
        internet: to a machine elsewhere.
    """

    within: dict[str, float]
    between: dict[str, float]
    internet: float


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dated table of unit prices in USD.

    Attributes:
        taken: day on which they were looked up, such as `2026-09-20`.
        region: that they hold for.
        dataflow: batch jobs.
        storage: buckets.
        transfer: between places.
    """

    taken: str
    region: str
    dataflow: Dataflow
    storage: Storage
    transfer: Transfer


LIST_PRICES = Prices(
    taken="2026-09-20",
    region="us-central1",
    dataflow=Dataflow(
        vcpu_hour=0.056, memory_gb_hour=0.003557, disk_gb_hour=0.000054, shuffle_gb=0.011
    ),
    storage=Storage(  # of a bucket in one region; class A costs twice that in two or more
        class_a_1000={"STANDARD": 0.005, "NEARLINE": 0.01, "COLDLINE": 0.02, "ARCHIVE": 0.05},
        class_b_1000={"STANDARD": 0.0004, "NEARLINE": 0.001, "COLDLINE": 0.01, "ARCHIVE": 0.05},
        retrieval_gb={"STANDARD": 0, "NEARLINE": 0.01, "COLDLINE": 0.02, "ARCHIVE": 0.05},
        gb_month={"STANDARD": 0.02, "NEARLINE": 0.01, "COLDLINE": 0.004, "ARCHIVE": 0.0012},
    ),
    transfer=Transfer(
        within={
            "africa": 0.08,
            "asia": 0.08,
            "europe": 0.02,
            "latin-america": 0.14,
            "middle-east": 0.08,
            "north-america": 0.02,
            "oceania": 0.08,
        },
        between={
            "asia europe": 0.08,
            "asia north-america": 0.08,
            "europe north-america": 0.05,
            "other": 0.14,  # the dearest pair's, where others cost 0.10 or 0.11
        },
        internet=0.12,
    ),
)


def merge_prices(given: Mapping[str, Any], base: Prices = LIST_PRICES) -> Prices:
    """Return a table in which given prices stand for others.

    Args:
        given: as parsed from a file, with the day `taken`, and any of the other keys.
        base: the others.

    Raises:
        ValueError: with key, value and remedy: for a key that is unknown, no date, or a price that
            is not a number from 0 on.

    >>> merge_prices({"taken": "2027-01-31", "transfer": {"internet": 0.1}}).transfer.internet
    0.1
    """
    taken = given.get("taken")
    if isinstance(taken, datetime.date):  # as TOML has it without quotes
        taken = taken.isoformat()
    if not isinstance(taken, str) or not _DATE.fullmatch(taken):
        shown = "none" if taken is None else repr(str(taken))
        raise ValueError(f'taken must be a day such as "2026-09-20", got {shown}: add it')
    merged = _merged(msgspec.to_builtins(base), {**given, "taken": taken}, "")
    return msgspec.convert(merged, Prices)


def _merged(base: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    result = dict(base)
    for key, value in given.items():
        name = f"{where}{key}"
        if key not in base:
            known = ", ".join(sorted(base))
            raise ValueError(f"{name} is no price, got {value!r}: name one of {known}")
        result[key] = _checked(base[key], value, name)
    return result


def _checked(base: Any, value: Any, name: str) -> Any:
    if isinstance(base, dict):
        if not isinstance(value, Mapping):
            raise ValueError(
                f"{name} must be a table, got {value!r}: write [{name}] above its keys"
            )
        return _merged(base, value, f"{name}.")
    if isinstance(base, str):
        if not isinstance(value, str):
            raise ValueError(f"{name} must be text, got {value!r}: write it in quotes")
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be USD, 0 or more, got {value!r}: write it like 0.02")
    return float(value)


def each_price(prices: Prices) -> Iterator[tuple[str, float]]:
    """Yield every price with its name, such as `storage.retrieval_gb.COLDLINE`."""
    yield from _leaves(msgspec.to_builtins(prices), "")


def _leaves(table: Mapping[str, Any], where: str) -> Iterator[tuple[str, float]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{where}{key}.")
        elif not isinstance(value, str):
            yield f"{where}{key}", value
