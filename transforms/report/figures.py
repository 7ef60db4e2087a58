"""Numbers as the page writes them: short, with their units, the same everywhere."""


def count_text(count: int) -> str:
    """Return a count with its thousands apart.

    >>> count_text(118287)
    '118,287'
    """
    return f"{count:,}"


def short_count(count: float) -> str:
    """Return a count for an axis.

    >>> [short_count(n) for n in (1, 950, 10_000, 2_500_000, 10**9)]
    ['1', '950', '10k', '2.5M', '1G']
    """
    for power, letter in ((9, "G"), (6, "M"), (3, "k")):
        if count >= 10**power:
            return f"{count / 10**power:g}{letter}"
    return f"{count:g}"


def percent_text(part: float) -> str:
    """Return a part as percents, two digits of it at least.

    >>> [percent_text(p) for p in (0, 1, 0.25, 0.125, 0.0312, 0.00004)]
    ['0 %', '100 %', '25 %', '12.5 %', '3.1 %', '0.004 %']
    """
    percents = 100 * part
    if percents >= 10 or percents == 0:
        return f"{round(percents, 1):g} %"
    return f"{percents:.2g} %"
