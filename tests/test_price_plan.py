"""What a run costs: literal sums, and what holds of any."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.prices import LIST_PRICES
from schemas.workload import Reads, Workload
from transforms.forecast.price_plan import (
    GB,
    N1_STANDARD_1,
    N2_STANDARD_4,
    PricedItem,
    price_lines,
    price_plan,
    transfer_price,
    worker_hours,
)

NOTHING = Workload(0, 0, 0, 0, 0, 0.0, "gs://out/set", region="us-central1")
MILLION = Workload(
    samples=1_000_000,
    listed_names=1_000_001,
    written_files=3_300,
    written_bytes=160 * GB,
    shuffled_bytes=GB,
    cpu_s=3600.0,
    output="gs://out/set",
    reads={
        ("gs://in/photos", "STANDARD"): Reads(600_000, 96 * GB),
        ("gs://in/photos", "NEARLINE"): Reads(400_000, 64 * GB),
    },
    region="europe-west4",
    workers=10,
)
PLACES = {"gs://in/photos": "us", "gs://out/set": "europe-west4"}
ONE_REGION = dict.fromkeys(PLACES, "europe-west4")


def test_a_million_photos_from_another_continent() -> None:
    lines = price_lines(MILLION, LIST_PRICES, PLACES)

    assert len({len(line) for line in lines[:14]}) == 1
    assert [" ".join(line.split()) for line in lines] == [
        "what it costs quantity unit USD each USD",
        "workers' processors 5.3 vCPU hours 0.056 0.30",
        "workers' memory 21.3 GB hours 0.003557 0.08",
        "workers' disks 66.7 GB hours 0.000054 0.00",
        "Dataflow Shuffle 2.0 GB 0.011 0.02",
        "listings 1.0 1,000 requests 0.005 0.01",
        "reads, STANDARD 600.0 1,000 requests 0.0004 0.24",
        "reads, NEARLINE 400.0 1,000 requests 0.001 0.40",
        "files created 3.3 1,000 requests 0.005 0.02",
        "retrieval, NEARLINE 64.0 GB 0.01 0.64",
        "transfer from gs://in/photos, us to another continent 160.0 GB 0.05 8.00",
        "transfer to gs://out/set, one region 160.0 GB 0 0.00",
        "sum 9.70",
        "each month of the output, STANDARD 160.0 GB months 0.02 3.20",
        "assumed: list prices in USD of us-central1, looked up on 2026-09-20; other regions differ,"
        " and discounts, free tiers and taxes are not counted",
        "assumed: 10 workers n2-standard-4 (4 vCPU, 16 GB, disk 50 GB), 1.3 hours together: vCPUs"
        " busy for 50% of it, 5 minutes of each to start and stop",
        "assumed: what is shuffled is billed when it is written and when it is read",
        "warning: 400,000 files are NEARLINE: reading them costs 0.64 USD each time, and moved or"
        " deleted before 30 days they are billed for 30",
        "warning: gs://in/photos is on another continent (us) than the job (europe-west4)",
    ]


def test_a_run_of_this_process_pays_for_requests_alone() -> None:
    here = dataclasses.replace(MILLION, region="", workers=0)

    priced = price_plan(here, LIST_PRICES, {})

    assert [item.name for item in priced.items] == [
        "listings",
        "reads, STANDARD",
        "reads, NEARLINE",
        "files created",
        "retrieval, NEARLINE",
    ]
    assert priced.warnings[-1] == (
        "160.0 GB come to this machine: up to 19.20 USD more if it is outside of Google Cloud"
    )


def test_quantities_of_a_small_run_are_told() -> None:
    small = dataclasses.replace(MILLION, listed_names=12, written_files=14, workers=1)
    lines = [" ".join(line.split()) for line in price_lines(small, LIST_PRICES, PLACES)]
    assert "listings 0.001 1,000 requests 0.005 0.00" in lines
    assert "files created 0.014 1,000 requests 0.005 0.00" in lines
    assert any(line.startswith("assumed: 1 worker n2-standard-4 (") for line in lines)


def test_what_lies_on_disks_costs_nothing() -> None:
    local = dataclasses.replace(
        MILLION, reads={("/photos", ""): Reads(9, GB)}, output="/out", region=""
    )

    assert price_plan(local, LIST_PRICES, {}).items == []
    assert price_plan(local, LIST_PRICES, {}).monthly == []
    assert price_plan(local, LIST_PRICES, {}).warnings == []


def test_other_stores_bill_themselves() -> None:
    reads = {("s3://in/photos", ""): Reads(9, GB), ("file:///photos", ""): Reads(1, 1)}
    priced = price_plan(
        dataclasses.replace(MILLION, reads=reads), LIST_PRICES, {"gs://out/set": "europe-west4"}
    )

    assert priced.warnings == ["what other stores bill is not counted: s3://in/photos"]
    assert not any("reads" in item.name for item in priced.items)


def test_older_and_unknown_classes_are_billed_as_standard() -> None:
    reads = {("gs://in/photos", name): Reads(1000, GB) for name in ("", "MULTI_REGIONAL")}
    priced = price_plan(dataclasses.replace(MILLION, reads=reads), LIST_PRICES, ONE_REGION)

    assert PricedItem("reads, STANDARD", 2.0, "1,000 requests", 0.0004) in priced.items


@pytest.mark.parametrize(("location", "price"), [("us", 0.01), ("nam4", 0.01), ("us-east1", 0.005)])
def test_files_in_several_regions_cost_twice(location: str, price: float) -> None:
    priced = price_plan(MILLION, LIST_PRICES, {**PLACES, "gs://out/set": location})

    assert PricedItem("files created", 3.3, "1,000 requests", price) in priced.items


@pytest.mark.parametrize(
    ("storage_class", "warning"),
    [
        (
            "COLDLINE",
            "1,000 files are COLDLINE: reading them costs 1.28 USD each time, and moved or deleted"
            " before 90 days they are billed for 90",
        ),
        (
            "ARCHIVE",
            "1,000 files are ARCHIVE: reading them costs 3.20 USD each time, and moved or deleted"
            " before 365 days they are billed for 365",
        ),
    ],
)
def test_cold_classes_are_warned_of(storage_class: str, warning: str) -> None:
    reads = {("gs://in/photos", storage_class): Reads(1000, 64 * GB)}
    cold = dataclasses.replace(MILLION, reads=reads)

    assert price_plan(cold, LIST_PRICES, ONE_REGION).warnings == [warning]


@pytest.mark.parametrize(
    ("location", "kind", "price", "warnings"),
    [
        ("europe-west4", "one region", 0.0, []),
        ("eur4", "one region", 0.0, []),
        ("europe-west4+europe-north1", "one region", 0.0, []),
        ("eu", "eu and europe-west4", 0.02, []),
        (
            "europe-west1",
            "europe-west1 and europe-west4",
            0.02,
            ["gs://out/set is in another region (europe-west1) than the job (europe-west4)"],
        ),
        (
            "asia-east1",
            "asia-east1 to another continent",
            0.08,
            ["gs://out/set is on another continent (asia-east1) than the job (europe-west4)"],
        ),
        (
            "africa-south1",
            "africa-south1 to another continent",
            0.14,
            ["gs://out/set is on another continent (africa-south1) than the job (europe-west4)"],
        ),
        (
            "mars-north1",
            "mars-north1, on no known continent",
            0.0,
            [
                "transfer between gs://out/set (mars-north1, on no known continent) and"
                " europe-west4 is not counted"
            ],
        ),
        (
            None,
            "location unknown",
            0.0,
            [
                "location unknown of gs://out/set: transfer is not counted; storage.buckets.get"
                " tells it"
            ],
        ),
    ],
)
def test_the_way_between_bucket_and_job(
    location: str | None, kind: str, price: float, warnings: list[str]
) -> None:
    assert transfer_price(location, "europe-west4", LIST_PRICES) == (kind, price)

    writing = dataclasses.replace(MILLION, reads={})
    priced = price_plan(writing, LIST_PRICES, {"gs://out/set": location})
    assert PricedItem(f"transfer to gs://out/set, {kind}", 160.0, "GB", price) in priced.items
    assert priced.warnings == warnings


@pytest.mark.parametrize(
    ("cpu_s", "workers", "machine", "expected"),
    [
        (0.0, 10, N2_STANDARD_4, (0, 0.0)),
        (7200.0, 0, N2_STANDARD_4, (1, 1 + 1 / 12)),
        (7200.0, 12, N2_STANDARD_4, (12, 2.0)),
        (18_000.0, 0, N1_STANDARD_1, (10, 10 + 10 / 12)),
    ],
)
def test_workers_are_billed_while_they_start_and_wait(
    cpu_s: float, workers: int, machine: object, expected: tuple[int, float]
) -> None:
    assert worker_hours(
        dataclasses.replace(MILLION, cpu_s=cpu_s, workers=workers), machine
    ) == pytest.approx(expected)


def test_nothing_costs_nothing() -> None:
    priced = price_plan(NOTHING, LIST_PRICES, {"gs://out/set": "us-central1"})

    assert priced.total == 0
    assert [item.amount for item in priced.monthly] == [0]
    assert priced.warnings == []


COUNTS = st.integers(0, 10**12)
WORKLOADS = st.builds(
    Workload,
    samples=COUNTS,
    listed_names=COUNTS,
    written_files=COUNTS,
    written_bytes=COUNTS,
    shuffled_bytes=COUNTS,
    cpu_s=st.floats(0, 1e9),
    output=st.sampled_from(["gs://out/set", "/out"]),
    reads=st.dictionaries(
        st.tuples(
            st.sampled_from(["gs://in/photos", "gs://other", "/photos", "s3://b"]),
            st.sampled_from(["STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE", ""]),
        ),
        st.builds(Reads, COUNTS, COUNTS),
    ),
    region=st.sampled_from(["us-central1", "europe-west4", ""]),
    workers=st.integers(0, 1000),
)
LOCATIONS = st.dictionaries(
    st.sampled_from(["gs://in/photos", "gs://other", "gs://out/set"]),
    st.sampled_from(["us-central1", "eu", "nam4", "asia-east1", None]),
)


@given(WORKLOADS, LOCATIONS)
def test_the_sum_is_that_of_the_lines(workload: Workload, locations: dict) -> None:
    priced = price_plan(workload, LIST_PRICES, locations)

    assert all(item.amount >= 0 for item in priced.items)
    assert priced.total == math.fsum(item.quantity * item.unit_price for item in priced.items)
    lines = price_lines(workload, LIST_PRICES, locations)
    assert len(lines) == 2 + sum(
        map(len, (priced.items, priced.monthly, priced.assumptions, priced.warnings))
    )


@given(
    WORKLOADS,
    LOCATIONS,
    st.sampled_from(
        ["listed_names", "written_files", "written_bytes", "shuffled_bytes", "cpu_s", "reads"]
    ),
    st.integers(1, 10**9),
)
def test_more_of_anything_costs_no_less(
    workload: Workload, locations: dict, name: str, more: int
) -> None:
    if name == "reads":
        larger: object = {
            key: Reads(reads.files + more, reads.bytes + more)
            for key, reads in workload.reads.items()
        }
    else:
        larger = getattr(workload, name) + more
    changed = dataclasses.replace(workload, **{name: larger})

    before = price_plan(workload, LIST_PRICES, locations).total
    assert price_plan(changed, LIST_PRICES, locations).total >= before * (1 - 1e-12)


@given(WORKLOADS, LOCATIONS)
def test_reads_of_two_classes_are_priced_as_if_alone(workload: Workload, locations: dict) -> None:
    """Operations and retrieval are linear: the sum over single classes is that of all."""

    def paid(reads: dict) -> float:
        alone = dataclasses.replace(workload, reads=reads)
        items = price_plan(alone, LIST_PRICES, locations).items
        return math.fsum(i.amount for i in items if i.name.startswith(("reads", "retrieval")))

    parts = [paid({key: reads}) for key, reads in workload.reads.items()]
    assert paid(dict(workload.reads)) == pytest.approx(math.fsum(parts))
