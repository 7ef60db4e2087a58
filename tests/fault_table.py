"""Every call of a storage in our code, and everything that can happen to it: the table.

`python -m tests.fault_table` prints it. Its rows come from the source (`tests.call_sites`), and
`tests/test_fault_table.py` runs every cell, or shows the reason why there is nothing to run.
"""

from collections.abc import Container, Iterator
from enum import Enum

from tests.call_sites import Site, call_sites
from tests.memory_store import ON_DISK


class Outcome(Enum):
    """What happens to a call; the value heads its column."""

    DONE = "done"
    KILLED_BEFORE = "killed before"
    KILLED_AFTER = "killed after"
    GIVEN_UP = "E-IO-RETRIES"
    REFUSED = "E-IO-AUTH"
    REPLY_LOST = "reply lost"
    STANDS_STILL = "stands still"
    TAKEN_BY_TWIN = "taken, equal"
    TAKEN_BY_OTHER = "taken, other"
    CHANGED = "changed"


MEANING = {
    Outcome.DONE: "the call has its effect; the run ends as an undisturbed one",
    Outcome.KILLED_BEFORE: "the process dies before the effect (SIGKILL, lost machine)",
    Outcome.KILLED_AFTER: "the process dies behind the effect, before it hears of it",
    Outcome.GIVEN_UP: "error or throttling that outlasts all retries: ends the run, exit 6",
    Outcome.REFUSED: "401, 403: ends the run, exit 6",
    Outcome.REPLY_LOST: "the effect, no reply, and the client sends it again",
    Outcome.STANDS_STILL: "hangs, and wakes when another run of the plan has done everything",
    Outcome.TAKEN_BY_TWIN: "412: the name was taken just before, by the same bytes",
    Outcome.TAKEN_BY_OTHER: "412: the name was taken just before, by other bytes: exit 5",
    Outcome.CHANGED: "the source was rewritten just before: E-SRC-CHANGED, exit 6",
}
_REASONS = {
    "d": "the worker's own disk: no reply, and no other run, takes part in it",
    "n": "it creates nothing: no name can be taken",
    "s": "it reads no bytes of a source; a read that follows tells of a change",
    "e": "its content is one and the same for all: only the name says something",
    "p": "what is read first is the data set that is meant; read again, it is compared",
    "x": "whatever has the name is what this run then reads and plans with",
    "l": "of an earlier run, as a rule of this output: what is written there is created once",
    "u": "a file of the user's may have the name: it is left, and the run goes on",
    "o": "it deletes: a run that lives meanwhile is told of in tests/CHAOS.md",
}
_OF_REMOVAL = (
    "remove_output",
    "_is_own_document",
    "_has_plan",
    "_find_manifest",
    "_is_own_index",
    "_keep_excluded",
    "_read_receipts",
    "_overwrite",
)
_CREATE = ("create", "spool.publish")
_READ_SOURCES = (
    "transforms.earlier.read_written",
    "transforms.sources.read_blobs.read_blob",
    "transforms.sources.read_samples.read_identified",
)


def why_not(site: Site, outcome: Outcome) -> str:
    """Return the letter of the reason why an outcome is none of a site's; empty where it is."""
    creates = site.operation in _CREATE
    if outcome is Outcome.REPLY_LOST and site.operation in ON_DISK:
        return "d"
    if outcome in (Outcome.TAKEN_BY_TWIN, Outcome.TAKEN_BY_OTHER) and not creates:
        return "n"
    if outcome is Outcome.TAKEN_BY_OTHER and site.function in ("_overwrite", "_keep_excluded"):
        return "x"
    if outcome is Outcome.TAKEN_BY_OTHER and site.function == "create_or_leave":
        return "u"
    if outcome is Outcome.TAKEN_BY_OTHER and site.function == "commit":
        return "e"
    if outcome is Outcome.STANDS_STILL and site.function in _OF_REMOVAL:
        return "o"
    if outcome is Outcome.CHANGED and site.function == "read_uri":
        return "l"
    if outcome is Outcome.CHANGED and site.module == "transforms.earlier":
        return "p" if site.operation == "read" else "s"
    if outcome is Outcome.CHANGED and f"{site.module}.{site.function}" not in _READ_SOURCES:
        return "s"
    return ""


def cells() -> Iterator[tuple[Site, Outcome]]:
    """Yield every cell in which something is to be run."""
    for site in call_sites().values():
        for outcome in Outcome:
            if not why_not(site, outcome):
                yield site, outcome


def cell_name(site: Site, outcome: Outcome) -> str:
    """Return what a test that has run a cell records."""
    return f"{site} - {outcome.value}"


def as_markdown(covered: Container[str] | None = None) -> str:
    """Return the table: `✓` for a cell that is run, a letter for a reason.

    Args:
        covered: names of the cells that were run, the others are `BLANK`; None for all.
    """
    columns = list(Outcome)
    lines = [
        f"| call site | {' | '.join(outcome.value for outcome in columns)} |",
        f"|---|{':-:|' * len(columns)}",
    ]
    for site in call_sites().values():
        row = " | ".join(_cell(site, outcome, covered) for outcome in columns)
        lines.append(f"| `{site}` | {row} |")
    lines += ["", *(f"- **{outcome.value}**: {text}" for outcome, text in MEANING.items())]
    lines += ["", *(f"- {letter}: {reason}" for letter, reason in _REASONS.items())]
    return "\n".join(lines) + "\n"


def _cell(site: Site, outcome: Outcome, covered: Container[str] | None) -> str:
    if reason := why_not(site, outcome):
        return reason
    return "✓" if covered is None or cell_name(site, outcome) in covered else "BLANK"


if __name__ == "__main__":
    print(as_markdown(), end="")
