"""Print how large each part of the project is, and fail above its budget.

`python tests/code_size.py` counts lines of code: without blank lines, comments and docstrings.
Tests count by all their lines. A change that needs more room takes it from elsewhere.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipelines", "readers", "schemas", "transforms")


class Budget(NamedTuple):
    """A part of the project.

    Attributes:
        name: name in the table.
        at_most: largest number of lines.
        patterns: globs of its files, relative to the project's root.
        all_lines: count all lines, not only code.
    """

    name: str
    at_most: int
    patterns: Sequence[str]
    all_lines: bool = False


BUDGETS = (
    Budget("pipelines", 3995, ["pipelines/**/*.py"]),
    Budget("transforms/*.py, shuffle", 3551, ["transforms/*.py", "transforms/shuffle/**/*.py"]),
    Budget("transforms/sources", 2774, ["transforms/sources/**/*.py"]),
    Budget("report", 1031, ["transforms/report/**/*.py"]),
    Budget("report's template", 509, ["transforms/report/assets/*"], all_lines=True),
    Budget("transforms/images", 1016, ["transforms/images/**/*.py"]),
    Budget("transforms/storage", 1360, ["transforms/storage/**/*.py"]),
    Budget("verify", 611, ["transforms/verify/**/*.py"]),
    Budget("transforms/records", 439, ["transforms/records/**/*.py"]),
    Budget("schemas/*.py", 2238, ["schemas/*.py"]),
    Budget("schemas/annotations", 1090, ["schemas/annotations/**/*.py"]),
    Budget(
        "schemas/layouts, documents, geometry",
        2122,
        [f"schemas/{folder}/**/*.py" for folder in ("layouts", "documents", "geometry")],
    ),
    Budget("data card's template", 225, ["schemas/documents/*.j2"], all_lines=True),
    Budget("readers", 998, ["readers/**/*.py", "beam_tfrec/__init__.py"]),
    Budget("all four packages", 21_200, [f"{package}/**/*.py" for package in PACKAGES]),
    Budget("tests, all lines", 29_999, ["tests/**/*.py"], all_lines=True),
)
MOST_MODULES = 143


def code_lines(source: str) -> int:
    """Return the number of lines that hold code.

    >>> code_lines('"Docstring."\\n\\nx = (1,  # why\\n     2)\\n# a comment\\n')
    2
    """
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in ignored and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - set(_docstring_lines(ast.parse(source))))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of docstrings and other bare strings."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def files_of(budget: Budget) -> list[Path]:
    """Return the files of a part, each once."""
    found = {path for pattern in budget.patterns for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not {"__pycache__", ".venv"} & {*path.parts})


def size(budget: Budget) -> int:
    """Return the number of lines of a part."""
    texts = [path.read_text(encoding="utf-8") for path in files_of(budget)]
    return sum(len(text.splitlines()) if budget.all_lines else code_lines(text) for text in texts)


def main() -> int:
    """Print the table; return 1 if a part is above its budget."""
    rows = [(budget.name, size(budget), budget.at_most) for budget in BUDGETS]
    modules = sum(len([*ROOT.glob(f"{package}/**/*.py")]) for package in PACKAGES)
    rows.append(("modules", modules, MOST_MODULES))
    width = max(len(name) for name, _, _ in rows)
    for name, lines, at_most in rows:
        over = f"  {lines - at_most:,} too many" if lines > at_most else ""
        print(f"{name:{width}} {lines:>8,} of {at_most:>7,}{over}")
    return int(any(lines > at_most for _, lines, at_most in rows))


if __name__ == "__main__":
    sys.exit(main())
