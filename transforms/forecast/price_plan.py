"""What a planned run costs on Google Cloud, by a table of unit prices; nothing is asked or read.

An estimate: quantities follow from the plan, prices from the table, and how busy workers are from
an assumption that is told with it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from schemas.places import MULTI_REGIONS, continent_of, regions_of
from schemas.prices import MIN_STORAGE_DAYS, STORAGE_CLASSES, Prices
from schemas.workload import Reads, Workload

GB = 2**30
"""As Google counts."""

BUSY = 0.5
"""Of its time that a vCPU works: the rest waits for buckets, or for the last shards."""

START_HOURS = 5 / 60
"""For which a worker is billed while it starts and stops."""

SHUFFLE_PASSES = 2
"""What is shuffled is written and read, and billed for both."""

NAMES_A_LISTING = 1000

Locations = Mapping[str, str | None]
"""Where the bucket of a URI is, such as `us-central1` or `eu`; None or no entry: not known."""


@dataclass(frozen=True)
class Machine:
    """A worker.

    Attributes:
        name: of Compute Engine's type.
        vcpus: of it.
        memory_gb: of it.
        disk_gb: standard persistent disk.
    """

    name: str
    vcpus: int
    memory_gb: float
    disk_gb: float


N1_STANDARD_1 = Machine("n1-standard-1", 1, 3.75, 25)
"""Dataflow's own choice where none is made."""

N2_STANDARD_4 = Machine("n2-standard-4", 4, 16, 50)
"""What `run_dataflow.sh` asks for."""


@dataclass(frozen=True)
class PricedItem:
    """A line of the bill.

    Attributes:
        name: what is billed.
        quantity: in `unit`.
        unit: such as `vCPU hours`.
        unit_price: USD.
    """

    name: str
    quantity: float
    unit: str
    unit_price: float

    @property
    def amount(self) -> float:
        """USD."""
        return self.quantity * self.unit_price


@dataclass(frozen=True)
class PricedPlan:
    """What a run costs.

    Attributes:
        items: of the run.
        monthly: of each month in which its output is kept.
        assumptions: sentences.
        warnings: sentences on what costs more than it need, or is not counted.
    """

    items: Sequence[PricedItem]
    monthly: Sequence[PricedItem]
    assumptions: Sequence[str]
    warnings: Sequence[str]

    @property
    def total(self) -> float:
        """USD, of the run."""
        return math.fsum(item.amount for item in self.items)


def price_plan(
    workload: Workload, prices: Prices, locations: Locations, machine: Machine = N2_STANDARD_4
) -> PricedPlan:
    """Return what a run costs.

    Args:
        workload: what it does.
        prices: of units.
        locations: of its buckets, by the URIs that the workload names.
        machine: its workers, where it has a region.
    """
    items = [
        *_worker_items(workload, prices, machine),
        *_operation_items(workload, prices, locations),
        *_retrieval_items(workload, prices),
        *_transfer_items(workload, prices, locations),
    ]
    monthly = []
    if _is_gcs(workload.output):
        size, price = workload.written_bytes / GB, prices.storage.gb_month["STANDARD"]
        monthly.append(PricedItem("each month of the output, STANDARD", size, "GB months", price))
    return PricedPlan(
        items,
        monthly,
        list(_assumptions(workload, prices, machine)),
        list(_warnings(workload, prices, locations)),
    )


def price_lines(
    workload: Workload, prices: Prices, locations: Locations, machine: Machine = N2_STANDARD_4
) -> list[str]:
    """Return what a run costs as a table with its assumptions and warnings; see `price_plan`."""
    priced = price_plan(workload, prices, locations, machine)
    rows = [_row(item) for item in priced.items]
    total = ("sum", "", "", "", f"{priced.total:,.2f}")
    monthly = [_row(item) for item in priced.monthly]
    header = ("what it costs", "quantity", "unit", "USD each", "USD")
    lines = _columns([header, *rows, total, *monthly])
    lines += [f"assumed: {text}" for text in priced.assumptions]
    return lines + [f"warning: {text}" for text in priced.warnings]


def worker_hours(workload: Workload, machine: Machine) -> tuple[int, float]:
    """Return (workers, hours of all of them together); none where there is nothing to do.

    As many workers as were asked for, else as many as end within an hour.

    >>> worker_hours(Workload(0, 0, 0, 0, 0, 7200.0, "out", region="r"), N1_STANDARD_1)
    (4, 4.333333333333333)
    """
    working = workload.cpu_s / 3600 / BUSY / machine.vcpus
    if not working:
        return 0, 0.0
    workers = workload.workers or math.ceil(working)
    return workers, working + workers * START_HOURS


def _worker_items(workload: Workload, prices: Prices, machine: Machine) -> list[PricedItem]:
    if not workload.region:
        return []
    _, hours = worker_hours(workload, machine)
    paid = prices.dataflow
    shuffled = workload.shuffled_bytes / GB * SHUFFLE_PASSES
    return [
        PricedItem("workers' processors", hours * machine.vcpus, "vCPU hours", paid.vcpu_hour),
        PricedItem("workers' memory", hours * machine.memory_gb, "GB hours", paid.memory_gb_hour),
        PricedItem("workers' disks", hours * machine.disk_gb, "GB hours", paid.disk_gb_hour),
        PricedItem("Dataflow Shuffle", shuffled, "GB", paid.shuffle_gb),
    ]


def _operation_items(
    workload: Workload, prices: Prices, locations: Locations
) -> Iterator[PricedItem]:
    creating = prices.storage.class_a_1000["STANDARD"]
    if any(_is_gcs(root) for root, _ in workload.reads):
        pages = math.ceil(workload.listed_names / NAMES_A_LISTING)
        yield PricedItem("listings", pages / 1000, "1,000 requests", creating)
    for storage_class, reads in _by_class(workload).items():
        price = prices.storage.class_b_1000[storage_class]
        name = f"reads, {storage_class}"
        yield PricedItem(name, reads.files / 1000, "1,000 requests", price)
    if _is_gcs(workload.output):
        location = locations.get(workload.output)
        factor = 1 if location is None or len(regions_of(location)) == 1 else 2
        files = workload.written_files / 1000
        yield PricedItem("files created", files, "1,000 requests", factor * creating)


def _retrieval_items(workload: Workload, prices: Prices) -> Iterator[PricedItem]:
    for storage_class, reads in _by_class(workload).items():
        price = prices.storage.retrieval_gb[storage_class]
        if price:
            yield PricedItem(f"retrieval, {storage_class}", reads.bytes / GB, "GB", price)


def _transfer_items(
    workload: Workload, prices: Prices, locations: Locations
) -> Iterator[PricedItem]:
    if not workload.region:
        return
    for root, size in _by_root(workload).items():
        yield _transfer(f"from {root}", size, locations.get(root), workload.region, prices)
    output, size = workload.output, workload.written_bytes
    if _is_gcs(output):
        yield _transfer(f"to {output}", size, locations.get(output), workload.region, prices)


def _transfer(
    what: str, size: int, location: str | None, region: str, prices: Prices
) -> PricedItem:
    kind, price = transfer_price(location, region, prices)
    return PricedItem(f"transfer {what}, {kind}", size / GB, "GB", price)


def transfer_price(location: str | None, region: str, prices: Prices) -> tuple[str, float]:
    """Return in words where a bucket is, seen from a job's region, and USD a GB for the way.

    A location that is not known costs nothing here: it is warned of.
    """
    if location is None:
        return "location unknown", 0.0
    if region in regions_of(location):
        return "one region", 0.0
    ends = continent_of(location), continent_of(region)
    if None in ends:
        return f"{location}, on no known continent", 0.0
    if ends[0] == ends[1]:
        return f"{location} and {region}", prices.transfer.within[str(ends[0])]
    between = prices.transfer.between
    pair = " ".join(sorted(map(str, ends)))
    return f"{location} to another continent", between.get(pair, between["other"])


def _by_class(workload: Workload) -> dict[str, Reads]:
    """Return what is read from buckets of Google's, by a class that has a price."""
    total = dict.fromkeys(STORAGE_CLASSES, Reads())
    for (root, storage_class), reads in workload.reads.items():
        if _is_gcs(root):
            # Older classes, such as MULTI_REGIONAL, are billed as STANDARD is.
            known = storage_class if storage_class in total else "STANDARD"
            files, size = total[known].files + reads.files, total[known].bytes + reads.bytes
            total[known] = Reads(files, size)
    return {name: reads for name, reads in total.items() if reads != Reads()}


def _by_root(workload: Workload) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for (root, _), reads in sorted(workload.reads.items()):
        if _is_gcs(root):
            sizes[root] = sizes.get(root, 0) + reads.bytes
    return sizes


def _assumptions(workload: Workload, prices: Prices, machine: Machine) -> Iterator[str]:
    yield (
        f"list prices in USD of {prices.region}, looked up on {prices.taken}; other regions differ,"
        " and discounts, free tiers and taxes are not counted"
    )
    if workload.region:
        workers, hours = worker_hours(workload, machine)
        noun = "worker" if workers == 1 else "workers"
        yield (
            f"{workers:,} {noun} {machine.name} ({machine.vcpus} vCPU, {machine.memory_gb:g} GB,"
            f" disk {machine.disk_gb:g} GB), {hours:,.1f} hours together: vCPUs busy for"
            f" {BUSY:.0%} of it, {START_HOURS * 60:.0f} minutes of each to start and stop"
        )
        yield "what is shuffled is billed when it is written and when it is read"


def _warnings(workload: Workload, prices: Prices, locations: Locations) -> Iterator[str]:
    yield from _class_warnings(workload, prices)
    if workload.region:
        yield from _location_warnings(workload, prices, locations)
    elif read := sum(_by_root(workload).values()):
        cost = read / GB * prices.transfer.internet
        yield (
            f"{read / GB:,.1f} GB come to this machine: up to {cost:,.2f} USD more if it is"
            " outside of Google Cloud"
        )
    foreign = sorted({root for root, _ in workload.reads if "://" in root and not _is_gcs(root)})
    foreign = [root for root in foreign if not root.startswith("file://")]
    if foreign:
        yield f"what other stores bill is not counted: {', '.join(foreign)}"


def _class_warnings(workload: Workload, prices: Prices) -> Iterator[str]:
    for storage_class, days in MIN_STORAGE_DAYS.items():
        reads = _by_class(workload).get(storage_class)
        if reads:
            fee = reads.bytes / GB * prices.storage.retrieval_gb[storage_class]
            yield (
                f"{reads.files:,} files are {storage_class}: reading them costs {fee:,.2f} USD each"
                f" time, and moved or deleted before {days} days they are billed for {days}"
            )


def _location_warnings(workload: Workload, prices: Prices, locations: Locations) -> Iterator[str]:
    for uri in (*_by_root(workload), *([workload.output] if _is_gcs(workload.output) else [])):
        location, region = locations.get(uri), workload.region
        kind, price = transfer_price(location, region, prices)
        if location is None:
            yield (
                f"location unknown of {uri}: transfer is not counted; storage.buckets.get tells it"
            )
        elif continent_of(location) is None or continent_of(region) is None:
            yield f"transfer between {uri} ({kind}) and {region} is not counted"
        elif continent_of(location) != continent_of(region):
            yield f"{uri} is on another continent ({location}) than the job ({region})"
        elif price and location not in MULTI_REGIONS:
            yield f"{uri} is in another region ({location}) than the job ({region})"


def _is_gcs(uri: str) -> bool:
    return uri.startswith("gs://")


def _row(item: PricedItem) -> tuple[str, ...]:
    digits = 3 if item.quantity < 1 else 1 if item.quantity < 10_000 else 0
    quantity, price = f"{item.quantity:,.{digits}f}", f"{item.unit_price:.6f}".rstrip("0")
    return item.name, quantity, item.unit, price.rstrip("."), f"{item.amount:,.2f}"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows in columns: names and units to the left, numbers to the right."""
    name, quantity, unit, price, amount = (
        max(map(len, column)) for column in zip(*rows, strict=True)
    )
    return [
        f"{row[0]:<{name}}  {row[1]:>{quantity}} {row[2]:<{unit}}  {row[3]:>{price}}"
        f"  {row[4]:>{amount}}"
        for row in rows
    ]
