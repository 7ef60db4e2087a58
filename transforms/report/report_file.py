"""The file of a report: its page, sealed, so that one that nobody has edited is known as ours."""

from schemas.seals import BLANK_SEAL, sealed
from transforms.report.contents import Report

_MARKER = f"<!-- {BLANK_SEAL}: made by beam-tfrec; once edited it is yours, and stays -->\n"


def report_file(report: Report) -> bytes:
    """Return the bytes of `report.html`; the comment before the document type is allowed there."""
    from transforms.report.page import render_page  # Jinja2 takes a twentieth of a second

    return sealed(_MARKER + render_page(report).decode()).encode()
