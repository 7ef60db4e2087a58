"""The page: one HTML file with all that it needs, which asks no network for anything.

It is written by a template that escapes every text, after what cannot be seen in it was made
visible. Its policy lets a browser run the one script and the one style sheet that are in it, known
by their digests, and show pictures that are in it; so no text of a stranger can become more than
text, even if it should get past the escaping. Equal reports have equal bytes.
"""

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from schemas.documents.markdown import seen
from transforms.report.charts import BOTTOM, HEIGHT, LEFT, MOST_SERIES, RIGHT, WIDTH
from transforms.report.contents import Report
from transforms.report.figures import count_text
from transforms.report.page_view import make_view

if TYPE_CHECKING:
    from jinja2 import Environment

_PACKAGE = "transforms.report"
_ASSETS = "assets"
_MOST_CHARACTERS = 300  # of any text; names of files have 255 bytes


def render_page(report: Report) -> bytes:
    """Return a report as HTML, UTF-8."""
    style, script = _asset("page.css"), _asset("page.js")
    template = _environment().get_template("page.html.j2")
    text = template.render(
        view=make_view(report), style=style, script=script, policy=content_policy(style, script)
    )
    return text.lstrip().encode()


def content_policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy of a page with this style sheet and script alone."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}';"
        f" script-src '{_digest(script)}'; base-uri 'none'; form-action 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    """Return a file of the package, with the line ends that a browser hashes."""
    data = resources.files(_PACKAGE).joinpath(_ASSETS, name).read_bytes()
    return data.decode().replace("\r\n", "\n")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(_PACKAGE, _ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = count_text
    environment.globals.update(
        width=WIDTH, height=HEIGHT, left=LEFT, right=RIGHT, bottom=BOTTOM, most_series=MOST_SERIES
    )
    return environment


def _finalize(value: Any) -> Any:
    """Make visible what cannot be seen in a text, before it is escaped; a template's stays."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return seen(value, _MOST_CHARACTERS)
    return f"{value:g}" if isinstance(value, float) else value
