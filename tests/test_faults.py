"""Fault codes, lines and exit codes."""

import traceback
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.faults import (
    EXIT_BUDGET,
    EXIT_BUG,
    EXIT_CONFLICT,
    EXIT_DAMAGE,
    EXIT_INVALID_INPUT,
    EXIT_STORAGE,
    EXIT_USAGE,
    FAULTS,
    Fault,
    Rejected,
    Scope,
    fault_line,
    find_fault,
    printable,
    reject_order,
)
from transforms.images.findings import TRAITS

DOC = Path(__file__).resolve().parent.parent / "docs" / "faults.md"
LINE = "E-ANN-JSON gs://b/a.json: the file ends at byte offset 3; repair the file"


def test_exit_codes_are_these() -> None:
    usage_to_damage = (EXIT_USAGE, EXIT_INVALID_INPUT, EXIT_BUDGET, EXIT_CONFLICT, EXIT_STORAGE)
    assert (EXIT_BUG, *usage_to_damage, EXIT_DAMAGE) == (1, 2, 3, 4, 5, 6, 7)


def test_a_fault_of_a_sample_never_ends_the_run_and_one_of_the_run_always_does() -> None:
    assert {fault.exit_code for fault in FAULTS.values() if fault.scope is Scope.SAMPLE} == {0}
    assert 0 not in {fault.exit_code for fault in FAULTS.values() if fault.scope is Scope.RUN}


ESCAPES = {
    "plain": ("a b~'\"\\", "a b~'\"\\"),  # what is printable ASCII stays, backslashes too
    "newline": ("a\nb", "a\\nb"),
    "escape": ("\x1b[31m", "\\x1b[31m"),  # colours a terminal
    "bidi override": ("a\u202egpj.exe", "a\\u202egpj.exe"),
    "lone surrogate": ("\ud800", "\\ud800"),  # what Python makes of undecodable file names
}


@pytest.mark.parametrize(("text", "escaped"), ESCAPES.values(), ids=ESCAPES)
def test_printable(text: str, escaped: str) -> None:
    assert printable(text) == escaped


FOUND = {
    "after its exception's type": (f"RuntimeError: {LINE}", LINE),
    "with a runner's suffix": (f"{LINE} [while running 'ReadCoco/ReadFiles']", LINE),
    "with a runner's words in a name": (
        "E-ANN-PATH a.json: '[while running ' climbs; rename it [while running 'ReadFiles']",
        "E-ANN-PATH a.json: '[while running ' climbs; rename it",
    ),
    "in a traceback that quotes codes": (
        "Traceback (most recent call last):\n"
        '  File "read_coco.py", line 7, in process\n'
        '    raise RuntimeError(fault_line("E-IO-AUTH", where, what, "log in"))\n'
        '    return "E-BUDGET"  # E-BUDGET: more rejects than accepted\n'
        f"RuntimeError: {LINE} [while running 'ReadFiles-ptransform-12']\n"
        "\n"
        "During handling of the above exception, another exception occurred:\n",
        LINE,
    ),
    "after a reject's": (f"E-IMG-EMPTY a.jpg: no bytes; rejected\n{LINE}", LINE),
    "with a code in a file's name": (
        "E-ANN-PATH a.json: file_name 'E-IO-AUTH a: b; c'; rename it",
        "E-ANN-PATH a.json: file_name 'E-IO-AUTH a: b; c'; rename it",
    ),
}


@pytest.mark.parametrize(("text", "line"), FOUND.values(), ids=FOUND)
def test_find_fault(text: str, line: str) -> None:
    assert find_fault(text) == (line.split()[0], line)


NOT_FOUND = {
    "another error": "ZeroDivisionError: division by zero",
    "a code alone": "E-IO-AUTH",
    "a code without a remedy": "E-IO-AUTH gs://b: refused",
    "an unknown code": "E-NONE gs://b: refused; log in",
    "a code within a word": "RE-BUDGET 3: more than 2; accept them",
    "a source line": 'raise RuntimeError(fault_line("E-IO-AUTH", "a", "b: c; d", "log in"))',
    "codes without end": "E-ARG a: " * 50_000,  # hours, if each were tried with each colon
}


@pytest.mark.parametrize("text", NOT_FOUND.values(), ids=NOT_FOUND)
def test_find_fault_finds_none(text: str) -> None:
    assert find_fault(text) is None


@given(st.sampled_from(sorted(FAULTS)), st.text(), st.text(), st.text())
def test_every_line_is_found_in_a_traceback(code: str, where: str, what: str, remedy: str) -> None:
    line = fault_line(code, where, what, remedy)
    try:
        raise RuntimeError(line)
    except RuntimeError:
        text = traceback.format_exc()
    expected = (code, line) if FAULTS[code].exit_code else None
    assert find_fault(text) == expected


def test_a_fault_is_found_in_what_a_runner_raises(
    test_pipeline: Callable[[], beam.Pipeline],
) -> None:
    def stop(_: int) -> int:
        raise RuntimeError(LINE)

    with pytest.raises(RuntimeError) as caught, test_pipeline() as pipeline:
        _ = pipeline | beam.Create([1]) | "Stop" >> beam.Map(stop)
    assert str(caught.value) != LINE  # the runner wraps it
    assert find_fault(str(caught.value)) == ("E-ANN-JSON", LINE)


def reject(code: str, key: str, ids: tuple = (), detail: str = "", split: str = "a") -> Rejected:
    return Rejected(
        code=code, stage="read", split=split, key=key, annotation_ids=ids, detail=detail
    )


def test_rejects_sort_by_split_key_and_code() -> None:
    in_order = [
        reject("E-BOX-EMPTY", "1", (10,)),
        reject("E-BOX-EMPTY", "1", (9,)),  # ids sort as text, since some are text
        reject("E-BOX-EMPTY", "1", ("x",)),
        reject("E-BOX-SHAPE", "1", (1,), "bbox is 2 values, not four numbers"),
        reject("E-BOX-SHAPE", "1", (1,), "bbox is 3 values, not four numbers"),
        reject("E-BOX-EMPTY", "2"),
        reject("E-BOX-EMPTY", "1", split="b"),
    ]
    backwards = in_order[::-1]
    assert sorted(backwards, key=reject_order) == in_order


def test_a_reject_s_line_is_this() -> None:
    rejected = reject("E-BOX-EMPTY", "42", (7, "x"))
    line = (
        b'{"code":"E-BOX-EMPTY","stage":"read","split":"a","key":"42",'
        b'"annotation_ids":[7,"x"],"file_name":"","detail":"","shard":""}'
    )
    assert msgspec.json.encode(rejected) == line
    assert msgspec.json.decode(line, type=Rejected) == rejected


def consequence(fault: Fault) -> str:
    if fault.scope is Scope.RUN:
        return f"exit code {fault.exit_code}"
    if fault.exit_code:
        return f"exit code {fault.exit_code}; with `--orphans drop` the annotation is dropped"
    if fault.scope is Scope.ANNOTATION:
        return "the annotation is dropped (`--max_dropped`)"
    return "the sample is rejected, with its annotations (`--max_rejected`)"


def test_the_document_lists_all_codes_and_traits() -> None:
    rows = [line for line in DOC.read_text().splitlines() if line.startswith("| `")]
    codes = [f"| `{code}` | {f.meaning} | {consequence(f)} |" for code, f in FAULTS.items()]
    assert rows[: len(codes)] == codes
    assert {f"| `{name}` | {meaning} |" for name, meaning in TRAITS.items()} <= {*rows}
