"""Text of strangers in Markdown: it shows as it is, and is never a link, a tag or a new line.

For CommonMark and GitHub's dialect of it. Letters stay as they are, and nothing depends on the
Unicode tables of a Python version.
"""

import re
from collections.abc import Iterable, Sequence

_MOST_CHARACTERS = 100

# Control, bidi and invisible characters, separators of lines, halves of surrogate pairs, tags.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    "\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    "\ud800-\udfff\U000e0000-\U0010ffff]"
)
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKS = str.maketrans(_ENTITIES | {mark: f"\\{mark}" for mark in "\\`*_[]{}|~$@"})
_LINK = re.compile(r"(?i)(:)(?=//)|(?<=www)(\.)")  # what GitHub makes a link of by itself


def escaped(text: str) -> str:
    r"""Return text that Markdown shows as it is, on one line, anywhere but at the line's beginning.

    What cannot be seen is shown as Python escapes it; of long text the first characters.

    >>> escaped("a|b <script>\n"), escaped("http://x.org/_a_")
    ('a\\|b &lt;script&gt;\\\\n', 'http\\://x.org/\\_a\\_')
    """
    marked = seen(text, _MOST_CHARACTERS).translate(_MARKS)
    return _LINK.sub(lambda found: f"\\{found[0]}", marked)


def seen(text: str, most_characters: int) -> str:
    r"""Return the first characters of a text, those that cannot be seen as Python escapes them.

    What is left stays dangerous to Markdown and HTML.

    >>> seen("gpj\u202e.exe\n", 100), seen("abcdef", 4)
    ('gpj\\u202e.exe\\n', 'abc…')
    """
    shown = text if len(text) <= most_characters else f"{text[: most_characters - 1]}…"
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], shown)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table, whose cells are Markdown already."""
    cells = [[str(cell) for cell in row] for row in rows]
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def code_block(language: str, lines: Iterable[str]) -> list[str]:
    """Return the lines of a fenced block; no line of the code may begin with a backtick."""
    return [f"```{language}", *lines, "```"]
