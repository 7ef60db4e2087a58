"""Quantities as people read them, for logs and summaries."""


def megabytes(size: int) -> str:
    """Return a size in bytes as megabytes.

    >>> megabytes(118_300_000), megabytes(1_500_000)
    ('118 MB', '1.5 MB')
    """
    return f"{size / 1e6:.0f} MB" if size >= 10_000_000 else f"{size / 1e6:.1f} MB"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "record"), counted(750, "record")
    ('1 record', '750 records')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
