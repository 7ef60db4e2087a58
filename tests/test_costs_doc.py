"""docs/costs.md says what the code gives."""

import doctest
import re
import sys
from pathlib import Path

import msgspec
import pytest

from schemas.prices import LIST_PRICES, merge_prices
from transforms.forecast.price_plan import price_lines

PROJECT = Path(__file__).resolve().parent.parent
sys.path.append(str(PROJECT / "benchmarks"))  # scripts, not a package

import scale  # noqa: E402

DOC = (PROJECT / "docs/costs.md").read_text()
SIZES = [1_000_000_000, 5_000_000_000]
PLACES = {"gs://in/photos": "us-central1", "gs://out/set": "us-central1"}


@pytest.mark.parametrize("images", SIZES)
def test_the_tables_are_those_of_the_code(images: int) -> None:
    lines = price_lines(scale.workload_of(images), LIST_PRICES, PLACES)

    assert "```text\n" + "\n".join(lines) + "\n```" in DOC


def rows() -> dict[str, list[str]]:
    """Return the cells of the document's tables by their first one."""
    tables = [line.strip("|").split("|") for line in DOC.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in tables}


def test_the_counts_are_those_of_the_code() -> None:
    works = [scale.workload_of(images) for images in SIZES]
    shards = [scale.shards_of(images) for images in SIZES]
    manifests = [scale.manifest_bytes_a_shard() * count for count in shards]

    assert rows()["shards"] == [f"{count:,}" for count in shards]
    assert rows()["files"] == [f"{work.written_files:,}" for work in works]
    assert rows()["shuffled"] == [f"{work.shuffled_bytes / 1e12:.2f} TB" for work in works]
    assert rows()["listing requests"] == [f"{work.listed_names // 1000:,}" for work in works]
    for told, size in zip(rows()["`manifest.json`"], manifests, strict=True):
        assert float(re.sub("[^0-9]", "", told)) == pytest.approx(size / 1e6, rel=0.01)


def test_larger_shards_are_as_many_as_said() -> None:
    count = 5_000_000_000 * (scale.IMAGE_BYTES + scale.RECORD_EXTRA_BYTES) // 10**9

    assert f"{count:,} shards for five billion" in DOC


def test_a_sample_costs_what_is_assumed() -> None:
    """Over the group-bys of `test_sample_cost.py`, and once as a listed name."""
    from tests.test_sample_cost import MOST_GROUPED_BYTES
    from transforms.coders import StructCoder
    from transforms.storage import Entry

    entry = Entry("000000391895.jpg", 160_000, "1700000000123456", 2**32 - 1, "file", "STANDARD")
    listed = len(StructCoder(Entry).encode(entry))

    assert MOST_GROUPED_BYTES + listed == pytest.approx(scale.SHUFFLED_BYTES, rel=0.02)


def test_the_example_of_a_table_is_one() -> None:
    [text] = re.findall(r"```toml\n(.*?)```", DOC, re.DOTALL)

    prices = merge_prices(msgspec.toml.decode(text))

    assert (prices.taken, prices.region) == ("2026-10-01", "europe-west4")
    assert prices.transfer.internet == 0.085


def test_examples_of_the_benchmark() -> None:
    assert doctest.testmod(scale).failed == 0


@pytest.mark.parametrize("step", [scale.rank_group, scale.join_group, scale.commit_shards])
def test_each_step_runs(step) -> None:
    assert step(64) > 0


def test_a_listing_is_divided() -> None:
    parts, requests, largest = scale.listing_parts(2_000_000, lambda n: f"{n:012}.jpg")

    assert 20 < parts <= 2048
    assert requests < 8 * parts
    assert largest < 300_000
