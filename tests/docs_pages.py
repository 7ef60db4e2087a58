"""Gather the pages of the documentation site: `python -m tests.docs_pages FOLDER`.

`make docs` does that, and builds the site from them.

Files keep their places, so that links work as they do in the repository. `docs/flags.md` gets all
flags of all commands, from their parsers, and `docs/api.md` the public functions.
"""

import argparse
import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from beam_tfrec.pipelines.cli import COMMANDS, PIPELINES

PROJECT = Path(__file__).resolve().parent.parent
PATTERNS = ["*.md", "LICENSE", "docs/*", "examples/*", "tests/*.md"]
PATTERNS += ["tests/data/*.md", "tests/fuzz/*.md", "tests/browser/*.py", "benchmarks/*.md"]
API = """
## Functions

::: beam_tfrec.readers.load

::: beam_tfrec.readers.open

::: beam_tfrec.readers.steps_per_epoch

::: beam_tfrec.readers.repeat_factors

::: beam_tfrec.readers.find_damaged_images

::: beam_tfrec.readers.records.Records
"""


def gather_pages(folder: Path) -> None:
    """Copy the pages, and append all flags and functions to the reference."""
    for pattern in PATTERNS:
        for path in PROJECT.glob(pattern):
            if path.is_file():
                target = folder / path.relative_to(PROJECT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
    with (folder / "docs/flags.md").open("a") as page:
        page.write("\n".join(["", *all_flags()]) + "\n")
    with (folder / "docs/api.md").open("a") as page:
        page.write(API)


def all_flags() -> Iterator[str]:
    """Yield the lines of Markdown that list every flag; those of all sources come once."""
    rows = {name: dict(flag_rows(name)) for name in COMMANDS if name != "plan"}
    first, *others = (set(rows[name].items()) for name in PIPELINES)
    shared = first.intersection(*others)
    yield from ["## All flags", "", "### All sources", "", "| flag | effect |", "|---|---|"]
    yield from (row for item in rows["coco"].items() if item in shared for row in item[1:])
    for name, flags in rows.items():
        yield from ["", f"### {name}", "", "| flag | effect |", "|---|---|"]
        yield from (row for item in flags.items() if item not in shared for row in item[1:])


def flag_rows(name: str) -> Iterator[tuple[str, str]]:
    """Yield each flag of a command, and its row of a table."""
    module = importlib.import_module(f"beam_tfrec.pipelines.{name}")
    parser = module.run.parser() if name in PIPELINES else module.parser()
    for flag in parser.flags:
        names = ", ".join(flag.option_strings) or flag.dest
        value = flag.metavar or "|".join(map(str, flag.choices or ()))
        value = " ".join(value) if isinstance(value, tuple) else value
        shown = f"`{names} {value}`".replace(" `", "`").replace("|", "\\|")
        does = flag.help if flag.help != argparse.SUPPRESS else ""
        yield names, f"| {shown} | {escaped(does % vars(flag) if does else '')} |"


def escaped(text: str) -> str:
    """Escape text for a cell of a Markdown table.

    >>> escaped("a|b of <c> and train_1")
    'a\\\\|b of &lt;c&gt; and train\\\\_1'
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "|_*`[]" else c for c in text)


if __name__ == "__main__":
    gather_pages(Path(sys.argv[1]))
