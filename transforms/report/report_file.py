"""The file of a report: its page, sealed, so that one that nobody has edited is known as ours."""

from schemas.documents.seals import BLANK_SEAL, is_sealed, sealed
from transforms.report.contents import Report
from transforms.storage import Storage

MAX_REPORT_BYTES = 64 << 20
"""No report is as large: what is larger is a file of the user's, and not read to know that."""

_MARKER = f"<!-- {BLANK_SEAL}: made by beam-tfrec; once edited it is yours, and stays -->\n"


def report_file(report: Report) -> bytes:
    """Return the bytes of `report.html`; the comment before the document type is allowed there."""
    from transforms.report.page import render_page  # Jinja2 takes a twentieth of a second

    return sealed(_MARKER + render_page(report).decode()).encode()


def is_own_report(storage: Storage, name: str) -> bool:
    """Return whether a file is there and a report as this program wrote it, which nobody edited."""
    there = storage.stat(name)
    if there is None or there.kind != "file" or there.size_bytes > MAX_REPORT_BYTES:
        return False
    return is_sealed(storage.read(name))
