import grpc
import pytest

from pipelines.engine_faults import engine_fault
from pipelines.launch import guarded
from tests.coco_command import settings_kept

PANIC = "Pipeline job-001 failed in state FAILED: panic: send on closed channel\ngoroutine 99:\n"
BUG = (
    "Pipeline job-1 failed in state FAILED: bundle failed:\nTraceback (most recent call last):\n"
    '  File "transforms/commit.py", line 3, in commit\nKeyError: 3\n'
)


class _Lost(grpc.RpcError):
    """Prints as those of gRPC's channels do."""

    def __str__(self) -> str:
        return '<... terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "reset"\n>'


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (RuntimeError(PANIC), "panic: send on closed channel"),
        (_Lost(), "reset"),
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
    line = f"E-RUN-ENGINE engine: {what}; see its log, then run again to resume\n"
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(BUG),
        RuntimeError("failed in state FAILED: 3"),  # not from the start: a text that quotes one
        KeyError("details"),
    ],
)
def test_a_bug_of_ours_stays_one(error: Exception) -> None:
    assert engine_fault(error) is None
