import grpc
import pytest
from google.api_core.exceptions import Forbidden
from google.protobuf.message import DecodeError

from pipelines.command import engine_fault, guarded
from tests.coco_command import settings_kept

PANIC = "Pipeline job-001 failed in state FAILED: panic: send on closed channel\ngoroutine 99:\n"
BUG = (
    "Pipeline job-1 failed in state FAILED: bundle failed:\nTraceback (most recent call last):\n"
    '  File "transforms/commit.py", line 3, in commit\nKeyError: 3\n'
)
LOST = (
    "Pipeline job-1 failed in state FAILED: Error running pipeline.\nTraceback (most recent call"
    ' last):\n  File "data_plane.py", line 594, in input_elements\nRuntimeError: Channel closed'
    " prematurely.\n"
)


class _Lost(grpc.RpcError):
    """Prints as those of gRPC's channels do."""

    def __str__(self) -> str:
        return '<... terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "reset"\n>'


class DataflowRuntimeException(Exception):
    """Named as that of a package which only Dataflow needs."""


QUOTA = "Dataflow pipeline failed. State: FAILED, Error:\n  not enough quota\nmore\n"
CANCELLED = "Dataflow pipeline failed. State: CANCELLED, Error:\nNone"


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (DataflowRuntimeException(QUOTA), "not enough quota"),
        (DataflowRuntimeException(CANCELLED), CANCELLED.partition("\n")[0]),
        (
            Forbidden("POST https://dataflow.googleapis.com: no"),
            "403 POST https://dataflow.googleapis.com: no",
        ),
        (RuntimeError(LOST), "a worker has ended: channel closed prematurely"),
        (RuntimeError(PANIC), "panic: send on closed channel"),
        (_Lost(), "reset"),
        (
            RuntimeError("Unable to fetch remote prism binary at https://x/p.zip: no route"),
            "Unable to fetch remote prism binary at https://x/p.zip: no route",
        ),
        (grpc.FutureTimeoutError(), "no answer from its job service"),
        (RuntimeError(f"Pipeline job-1 failed in state FAILED: {'x' * 5000}"), "x" * 300),
    ],
)
def test_an_engine_that_ended_is_one_line(
    error: Exception, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(argv: object) -> None:
        raise error

    with settings_kept():
        assert guarded(run, []) == 6
    line = f"E-JOB engine: {what}; see its log, then run again to resume\n"
    assert capsys.readouterr() == ("", line)


def test_the_cause_of_an_error_is_found() -> None:
    outer = RuntimeError("while something else")
    outer.__cause__ = RuntimeError(PANIC)
    assert engine_fault(outer) == engine_fault(RuntimeError(PANIC))


def test_a_bug_while_a_fault_of_the_engine_was_handled_stays_one() -> None:
    """And one whose text the engine brings, whatever else was lost with it."""
    bug, brought = KeyError("a"), RuntimeError(BUG)
    bug.__context__ = brought.__context__ = _Lost()
    assert engine_fault(bug) is None
    assert engine_fault(brought) is None
    assert engine_fault(DecodeError("no message")) is None


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(BUG),
        RuntimeError(LOST + "KeyError: 3\n"),
        RuntimeError("failed in state FAILED: 3"),  # not from the start: a text that quotes one
        DataflowRuntimeException(BUG),
        KeyError("details"),
    ],
)
def test_a_bug_of_ours_stays_one(error: Exception) -> None:
    assert engine_fault(error) is None
