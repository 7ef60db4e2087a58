"""The table of unit prices, and what may stand in its place."""

from pathlib import Path

import msgspec
import pytest

from schemas.places import continent_of, regions_of
from schemas.prices import LIST_PRICES, STORAGE_CLASSES, each_price, merge_prices
from tests.gcs_stand_in import GcsStandIn, Kind
from transforms.forecast.price_table import find_locations, load_prices

DATED = {"taken": "2027-01-31"}


def test_every_class_has_its_prices() -> None:
    storage = LIST_PRICES.storage

    for table in (
        storage.class_a_1000,
        storage.class_b_1000,
        storage.retrieval_gb,
        storage.gb_month,
    ):
        assert tuple(table) == STORAGE_CLASSES
    assert all(price >= 0 for _, price in each_price(LIST_PRICES))
    assert len(list(each_price(LIST_PRICES))) == 4 + 4 * 4 + 7 + 4 + 1


def test_colder_is_cheaper_to_keep_and_dearer_to_read() -> None:
    storage = LIST_PRICES.storage

    assert list(storage.gb_month.values()) == sorted(storage.gb_month.values(), reverse=True)
    for table in (storage.class_a_1000, storage.class_b_1000, storage.retrieval_gb):
        assert list(table.values()) == sorted(table.values())


def test_a_given_price_stands_for_another_and_the_others_stay() -> None:
    given = {**DATED, "region": "europe-west4", "storage": {"retrieval_gb": {"COLDLINE": 1}}}

    merged = merge_prices(given)

    assert (merged.taken, merged.region) == ("2027-01-31", "europe-west4")
    before, after = dict(each_price(LIST_PRICES)), dict(each_price(merged))
    assert {name for name in before if before[name] != after[name]} == {
        "storage.retrieval_gb.COLDLINE"
    }
    assert after["storage.retrieval_gb.COLDLINE"] == 1


@pytest.mark.parametrize("name", [name for name, _ in each_price(LIST_PRICES)])
def test_each_price_can_be_given(name: str) -> None:
    given: dict = {"taken": "2027-01-31"}
    table = given
    *folders, last = name.split(".")
    for folder in folders:
        table = table.setdefault(folder, {})
    table[last] = 7.25

    assert dict(each_price(merge_prices(given)))[name] == 7.25


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, 'taken must be a day such as "2026-09-20", got none: add it'),
        (
            {"taken": "today"},
            "taken must be a day such as \"2026-09-20\", got 'today': add it",
        ),
        (
            {"taken": "2026-13-01"},
            "taken must be a day such as \"2026-09-20\", got '2026-13-01': add it",
        ),
        (
            {**DATED, "dataflow": {"vcpu_hours": 1}},
            "dataflow.vcpu_hours is no price, got 1: name one of disk_gb_hour, memory_gb_hour,"
            " shuffle_gb, vcpu_hour",
        ),
        (
            {**DATED, "storage": {"gb_month": {"REGIONAL": 1}}},
            "storage.gb_month.REGIONAL is no price, got 1: name one of ARCHIVE, COLDLINE, NEARLINE,"
            " STANDARD",
        ),
        (
            {**DATED, "dataflow": {"vcpu_hour": -0.1}},
            "dataflow.vcpu_hour must be USD, 0 or more, got -0.1: write it like 0.02",
        ),
        (
            {**DATED, "dataflow": {"vcpu_hour": float("nan")}},
            "dataflow.vcpu_hour must be USD, 0 or more, got nan: write it like 0.02",
        ),
        (
            {**DATED, "transfer": {"internet": float("inf")}},
            "transfer.internet must be USD, 0 or more, got inf: write it like 0.02",
        ),
        (
            {**DATED, "transfer": {"internet": True}},
            "transfer.internet must be USD, 0 or more, got True: write it like 0.02",
        ),
        (
            {**DATED, "transfer": {"internet": "0.1"}},
            "transfer.internet must be USD, 0 or more, got '0.1': write it like 0.02",
        ),
        (
            {**DATED, "transfer": 1},
            "transfer must be a table, got 1: write [transfer] above its keys",
        ),
        ({**DATED, "region": 1}, "region must be text, got 1: write it in quotes"),
    ],
)
def test_what_is_no_table_is_told(given: dict, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        merge_prices(given)
    assert str(raised.value) == message


def test_without_a_file_there_are_the_list_prices() -> None:
    assert load_prices(None) is LIST_PRICES
    assert load_prices("") is LIST_PRICES


@pytest.mark.parametrize("date", ['"2027-01-31"', "2027-01-31"])
def test_a_file_of_prices(tmp_path: Path, date: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(f"taken = {date}\n[dataflow]\nvcpu_hour = 0.1\n")

    prices = load_prices(str(path))

    dataflow = msgspec.structs.replace(LIST_PRICES.dataflow, vcpu_hour=0.1)
    assert prices == msgspec.structs.replace(LIST_PRICES, taken="2027-01-31", dataflow=dataflow)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("taken =", "no TOML: Invalid value (at end of document); mend it, see docs/costs.md"),
        (
            "[dataflow]\nvcpu_hour = -1",
            'taken must be a day such as "2026-09-20", got none; add it',
        ),
        (
            'taken = "2027-01-31"\nvcpu_hour = 1',
            "vcpu_hour is no price, got 1; name one of dataflow, region, storage, taken, transfer",
        ),
    ],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)

    with pytest.raises(RuntimeError) as raised:
        load_prices(str(path))
    assert str(raised.value) == f"E-ARG {path}: {said}"


def test_a_file_of_prices_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^E-ARG \S+/none.toml: no such file; give the path"):
        load_prices(str(tmp_path / "none.toml"))


def test_each_bucket_is_asked_once_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with GcsStandIn() as stand_in:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stand_in.url)
        stand_in.make_bucket("a", location="EU")
        stand_in.make_bucket("b", location="US-CENTRAL1")

        found = find_locations(["gs://a/x", "gs://a/y", "gs://b", "s3://c", "/local"])

        assert found == {"gs://a/x": "eu", "gs://a/y": "eu", "gs://b": "us-central1"}
        assert stand_in.count(Kind.BUCKET) == 2


@pytest.mark.parametrize(
    ("location", "regions", "continent"),
    [
        ("us-central1", ("us-central1",), "north-america"),
        ("us", (), "north-america"),
        ("northamerica-south1", ("northamerica-south1",), "north-america"),
        ("nam4", ("us-central1", "us-east1"), "north-america"),
        ("us-east1+us-west1", ("us-east1", "us-west1"), "north-america"),
        ("europe-west4", ("europe-west4",), "europe"),
        ("eu", (), "europe"),
        ("eur4", ("europe-north1", "europe-west4"), "europe"),
        ("asia", (), "asia"),
        ("asia1", ("asia-northeast1", "asia-northeast2"), "asia"),
        ("australia-southeast1", ("australia-southeast1",), "oceania"),
        ("southamerica-east1", ("southamerica-east1",), "latin-america"),
        ("me-west1", ("me-west1",), "middle-east"),
        ("africa-south1", ("africa-south1",), "africa"),
        ("mars-north1", ("mars-north1",), None),
    ],
)
def test_places(location: str, regions: tuple[str, ...], continent: str | None) -> None:
    assert regions_of(location) == regions
    assert continent_of(location) == continent
    if continent:
        assert continent in LIST_PRICES.transfer.within
