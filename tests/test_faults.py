"""Fault codes, lines and exit codes."""

from pathlib import Path

import pytest

from beam_tfrec.schemas.faults import (
    EXIT_BUDGET,
    EXIT_BUG,
    EXIT_CONFLICT,
    EXIT_DAMAGE,
    EXIT_INVALID_INPUT,
    EXIT_STORAGE,
    EXIT_USAGE,
    FAULTS,
    FaultCode,
    Scope,
    find_fault,
    printable,
)
from beam_tfrec.transforms.images.findings import TRAITS

DOC = Path(__file__).resolve().parent.parent / "docs" / "faults.md"
LINE = "E-ANN-JSON gs://b/a.json: the file ends at byte offset 3; repair the file"


def test_exit_codes_never_change() -> None:
    usage_to_damage = (EXIT_USAGE, EXIT_INVALID_INPUT, EXIT_BUDGET, EXIT_CONFLICT, EXIT_STORAGE)
    assert (EXIT_BUG, *usage_to_damage, EXIT_DAMAGE) == (1, 2, 3, 4, 5, 6, 7)
    assert {fault.exit_code for fault in FAULTS.values() if fault.scope is Scope.SAMPLE} == {0}
    assert 0 not in {fault.exit_code for fault in FAULTS.values() if fault.scope is Scope.RUN}


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a b~'\"\\", "a b~'\"\\"),  # printable ASCII is kept, with backslashes
        ("\x1b[31m\n", "\\x1b[31m\\n"),  # colours a terminal
        ("a\u202egpj.exe", "a\\u202egpj.exe"),  # would be shown backwards
        ("\ud800", "\\ud800"),  # Python's form of undecodable file names
    ],
)
def test_printable(text: str, escaped: str) -> None:
    assert printable(text) == escaped


NAMES = (
    "E-ANN-PATH a.json: '[while running ' climbs; rename it",
    "E-ANN-PATH a.json: file_name 'E-IO-AUTH a: b; c'; rename it",
)
TRACEBACK = f"""Traceback (most recent call last):
  File "read_coco.py", line 7, in process
    raise RuntimeError(fault_line("E-IO-AUTH", where, what, "log in"))
    return "E-BUDGET"  # E-BUDGET: more rejects than accepted
RuntimeError: {LINE} [while running 'ReadFiles-ptransform-12']

During handling of the above exception, another exception occurred:
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"RuntimeError: {LINE}", LINE),
        (f"{LINE} [while running 'ReadCoco/ReadFiles']", LINE),
        (f"{NAMES[0]} [while running 'ReadFiles']", NAMES[0]),  # a runner's words in a name
        (TRACEBACK, LINE),
        (f"E-IMG-EMPTY a.jpg: no bytes; rejected\n{LINE}", LINE),  # a reject comes first
        (NAMES[1], NAMES[1]),  # a code in a file's name
        ("ZeroDivisionError: division by zero", ""),
        ("E-IO-AUTH", ""),
        ("E-IO-AUTH gs://b: refused", ""),  # no remedy
        ("E-NONE gs://b: refused; log in", ""),
        ("RE-BUDGET 3: more than 2; accept them", ""),
        ('raise RuntimeError(fault_line("E-IO-AUTH", "a", "b: c; d", "log in"))', ""),
        # Would take hours if each were tried with each colon.
        pytest.param("E-ARG a: " * 50_000, "", id="long"),
    ],
)
def test_find_fault(text: str, line: str) -> None:
    assert find_fault(text) == ((line.split()[0], line) if line else None)


def consequence(fault: FaultCode) -> str:
    if fault.scope is Scope.RUN:
        return f"exit code {fault.exit_code}"
    if fault.exit_code:
        otherwise = "with `--orphans drop`, and in other sources, the annotation is dropped"
        return f"`coco`: exit code {fault.exit_code}; {otherwise}"
    if fault.scope is Scope.ANNOTATION:
        return "the annotation is dropped (`--max_dropped`)"
    if fault is FAULTS["E-IMG-SIMILAR"]:
        return "the sample is left out, with its annotations (`--drop_similar`)"
    return "the sample is rejected, with its annotations (`--max_rejected`)"


def test_the_document_lists_all_codes_and_traits() -> None:
    rows = [line for line in DOC.read_text().splitlines() if line.startswith("| `")]
    codes = [f"| `{code}` | {f.meaning} | {consequence(f)} |" for code, f in FAULTS.items()]
    assert rows[: len(codes)] == codes
    assert {f"| `{name}` | {meaning} |" for name, meaning in TRAITS.items()} <= {*rows}
