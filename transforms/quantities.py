"""Quantities as people read them, for logs and summaries."""


def megabytes(size: int) -> str:
    """Return a size in bytes as megabytes.

    >>> megabytes(118_300_000), megabytes(1_500_000)
    ('118 MB', '1.5 MB')
    """
    return f"{size / 1e6:.0f} MB" if size >= 10_000_000 else f"{size / 1e6:.1f} MB"


def bytes_text(size: float) -> str:
    """Return a size in bytes, three digits of it, in decimal units.

    >>> [bytes_text(n) for n in (0, 999, 1000, 152_345, 10**8, 2 * 10**12, 3 * 10**15)]
    ['0 B', '999 B', '1 kB', '152 kB', '100 MB', '2 TB', '3,000 TB']
    """
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 0.9995 * 10**power:
            value = size / 10**power
            return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"
    return f"{size:.0f} B"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "record"), counted(750, "record")
    ('1 record', '750 records')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
