import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms.earlier import date_in, expand_date, parse_date

DAY = datetime.date(2026, 11, 20)


@pytest.mark.parametrize(
    ("name", "expanded"),
    [
        ("gs://b/coco-{date}", "gs://b/coco-2026-11-20"),
        ("{date}/{date}", "2026-11-20/2026-11-20"),
        ("coco", "coco"),
        ("a{x}{{date}}{Date}", "a{x}{2026-11-20}{Date}"),  # no other braces mean anything
    ],
)
def test_the_day_takes_the_place_of_date(name: str, expanded: str) -> None:
    assert expand_date(name, DAY) == expanded


@pytest.mark.parametrize(
    "text",
    [
        "",
        "today",
        "20261120",  # ISO 8601 too, but not what names hold
        "2026-W47-5",
        "2026-11-31",
        "2026-13-01",
        "2026-1-2",
        " 2026-11-20",
        "2026-11-20T00:00",
        "\u0662026-11-20",  # a digit to Python
    ],
)
def test_what_is_no_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_date(text)

    assert str(raised.value) == (
        f"date must be a day as YYYY-MM-DD, got {text!r}: give one such as 2026-11-20"
    )


@pytest.mark.parametrize(
    ("name", "pattern", "day"),
    [
        ("coco-2026-11-20", "coco-{date}", DAY),
        ("2026-11-20.v2", "{date}.v2", DAY),
        ("2026-11-20_2026-11-20", "{date}_{date}", DAY),
        ("2026-11-20_2026-11-21", "{date}_{date}", None),  # of two days
        ("coco-2026-11-20-old", "coco-{date}", None),
        ("old-coco-2026-11-20", "coco-{date}", None),
        ("coco-2026-11-31", "coco-{date}", None),
        ("coco-latest", "coco-{date}", None),
        ("", "coco-{date}", None),
    ],
)
def test_names_of_a_pattern_tell_their_day(
    name: str, pattern: str, day: datetime.date | None
) -> None:
    assert date_in(name, pattern) == day


@given(st.dates(), st.text(max_size=5), st.text(max_size=5))
def test_a_name_tells_the_day_that_it_was_given(day: datetime.date, head: str, tail: str) -> None:
    pattern = f"{head}{{date}}{tail}"

    assert date_in(expand_date(pattern, day), pattern) == day
