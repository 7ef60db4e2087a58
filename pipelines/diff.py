"""Compare two data sets: `beam-tfrec diff --help`.

This module imports neither Beam nor TensorFlow.
"""

import gc
import json
import sys
from collections.abc import Iterator, Sequence

import msgspec

from beam_tfrec.pipelines.cli import A_SET, FlagParser, add_reading_flags, main, reading_access, say
from beam_tfrec.schemas.example_rules import aligned
from beam_tfrec.schemas.faults import EXIT_DIFFERENT
from beam_tfrec.transforms.verify.compare import COUNTS, Difference, compare, open_data_set


def parser() -> FlagParser:
    """Return the parser of the command line."""
    by = "By keys, by the SHA-256 of sources and by checksums of records, from their indexes."
    found = FlagParser("diff", f"{by} Exit code 0: equal; 1: different.")
    for name in ("a", "b"):
        found.path(name, A_SET, name.upper())
    group = found.group("output")
    keys = "print a line for each record that differs, such as `changed image train 139`, sorted"
    group.switch("--keys", keys)
    group.choice("--format", "print text, or one JSON object", ("text", "json"), "text")
    add_reading_flags(found)
    return found


def run(argv: Sequence[str]) -> None:
    """Compare two data sets, print the differences, and exit with 1 if there are any.

    Raises:
        RuntimeError: as `open_data_set` says.
    """
    flags = parser().parse_args(argv)
    gc.set_threshold(100_000, 20, 20)  # rows have no cycles, and looking for them takes long
    access = reading_access(flags, [flags.a, flags.b])
    found = compare(open_data_set(flags.a, access), open_data_set(flags.b, access))
    if not flags.keys:
        found.keys.clear()
    as_json = json.dumps(msgspec.to_builtins(found), indent=2).splitlines()
    for line in as_json if flags.format == "json" else text_lines(found):
        say(line)
    if not found.equal:
        sys.exit(EXIT_DIFFERENT)


def text_lines(found: Difference) -> Iterator[str]:
    """Yield the lines of a comparison for people; the last one is the result."""
    yield from found.keys
    yield from found.contrasts
    rows = [("split", *(what.replace("_", " ") for what in COUNTS))]
    splits = [*found.splits.items(), ("all", found.total)]
    rows += [(name, *map(str, counts.values())) for name, counts in splits]
    yield from aligned(rows)
    words = ("removed", "added", "changed")
    rows = [(f"{c['id']} {c['name']}", *(str(c[word]) for word in words)) for c in found.classes]
    yield from aligned([("class", *words), *rows] if rows else ())
    yield from (f"note: {note}" for note in found.notes)
    yield "equal" if found.equal else "different"


if __name__ == "__main__":
    main("diff")
