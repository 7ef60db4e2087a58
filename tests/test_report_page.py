"""The page: complete, small, safe, and the same for equal reports."""

from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_tfrec.schemas.documents.data_card import seen
from beam_tfrec.transforms.report import Report, SplitReport
from beam_tfrec.transforms.report.charts import make_chart, median
from beam_tfrec.transforms.report.page import render_page
from tests.report_contents import BIDI, NO_COUNTS, XSS, hostile_report, rich_report


class Elements(HTMLParser):
    """Elements of a page with their attributes, and its text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.found)


def test_a_page_shows_all_parts() -> None:
    page = Elements(render_page(rich_report()))
    ids = {attributes.get("id") for _, attributes in page.found}
    assert {"pictures", "counts", "sizes", "classes", "origin", "features"} <= ids
    assert {"show-boxes", "show-masks", "show-points", "show-names"} <= ids
    classes = Counter(attributes.get("class") for _, attributes in page.found)
    assert (classes["tile"], classes["mask"], classes["chart"]) == (96, 96, 4)
    for text in (
        *("birds-and-bicycles", "22,000", "median 640 px", "median 480 px", "person"),
        *(
            "E-IMG-TRUNCATED",
            "photos/7.jpg",
            "no end marker",
            "a caption in a sentence",
            "1,203 classes, 1,198 of them without a record",
        ),
        *("Private data:", "24 pictures with GPS positions", "thing 0006", "a note"),
    ):
        assert text in page.text


def test_a_page_leaves_out_empty_parts() -> None:
    page = Elements(render_page(Report("a", "", [SplitReport("", NO_COUNTS)])))
    ids = {attributes.get("id") for _, attributes in page.found}
    assert "origin" in ids and not ids & {"pictures", "counts", "sizes", "classes", "show-masks"}


def test_untrusted_text_stays_text() -> None:
    data = render_page(hostile_report())
    page = Elements(data)
    assert page.count("script") == 1
    assert all(not name.startswith("on") for _, attributes in page.found for name in attributes)
    assert {str(attributes.get("src", "data:"))[:5] for _, attributes in page.found} == {"data:"}
    assert XSS in page.text and seen(BIDI, 300) in page.text and "{{ 7 * 7 }}" in page.text
    assert all(c.isprintable() or c in "\n\t" for c in data.decode())


def test_the_policy_allows_only_the_pages_own_script_and_style() -> None:
    """Equal reports also have equal bytes."""
    data = render_page(rich_report(6, 20))
    assert data == render_page(rich_report(6, 20))
    metas = dict(
        attributes.values()
        for tag, attributes in Elements(data).found
        if tag == "meta" and len(attributes) == 2
    )
    policy = str(metas["Content-Security-Policy"])
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy
    used = data.replace(b"http-equiv", b"").replace(b"http://www.w3.org/2000/svg", b"")
    assert b"http" not in used


@pytest.mark.parametrize(
    ("histogram", "rows"),
    [
        ({2: 1, 4: 3}, [("2", [1], [33.3]), ("4", [3], [100.0])]),
        ({0: 1, 100: 2}, [("0", [1], [50.0]), ("91 – 100", [2], [100.0])]),
        ({5: 1}, [("5", [1], [100.0])]),
    ],
)
def test_the_rows_of_a_chart(histogram: dict[int, int], rows: list[tuple]) -> None:
    bins = make_chart("objects", [("train", histogram)]).bins
    assert [row for row in bins if sum(row.counts)] == rows


def test_more_than_three_splits_are_one_series() -> None:
    chart = make_chart("image_width", [(name, {64: 1}) for name in "abcd"])
    assert chart.series == [("all splits", "median 64 px")]
    assert chart.bins == [("64 px", [4], [100.0])]


@given(st.dictionaries(st.integers(0, 10**6), st.integers(1, 5), min_size=1, max_size=30))
def test_charts_count_each_record_once_and_medians_are_exact(histogram: dict[int, int]) -> None:
    values = sorted(value for value, count in histogram.items() for _ in range(count))
    assert median(histogram) == values[(len(values) - 1) // 2]
    bins = make_chart("record_bytes", [("train", histogram)]).bins
    assert sum(row.counts[0] for row in bins) == len(values)
    assert max(row.bars[0] for row in bins) == 100.0
