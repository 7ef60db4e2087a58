"""`{date}` in a data set's name: the day of a run, so that a schedule's command never changes."""

import datetime
import re

DATE = "{date}"
"""What stands for a day; other braces are what they are."""

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def parse_date(text: str) -> datetime.date:
    """Return the day of `YYYY-MM-DD`; of no other form, since names hold this one.

    >>> parse_date("2026-11-20")
    datetime.date(2026, 11, 20)

    Raises:
        ValueError: when the text is no day.
    """
    try:
        if _DAY.fullmatch(text):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    raise ValueError(f"date must be a day as YYYY-MM-DD, got {text!r}: give one such as 2026-11-20")


def expand_date(name: str, date: datetime.date) -> str:
    """Return a name with the day in it.

    >>> expand_date("gs://b/coco-{date}", parse_date("2026-11-20"))
    'gs://b/coco-2026-11-20'
    """
    return name.replace(DATE, date.isoformat())


def date_in(name: str, pattern: str) -> datetime.date | None:
    """Return the day that a name has where the pattern has `{date}`, None for any other name.

    >>> date_in("coco-2026-11-20", "coco-{date}"), date_in("coco-old", "coco-{date}")
    (datetime.date(2026, 11, 20), None)
    """
    start = pattern.index(DATE)
    try:
        date = parse_date(name[start : start + len("YYYY-MM-DD")])
    except ValueError:
        return None
    return date if expand_date(pattern, date) == name else None
