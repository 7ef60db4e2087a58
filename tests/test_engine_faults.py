import grpc
import pytest
from google.api_core.exceptions import Forbidden

from pipelines.engines import engine_fault

FAILED = "Pipeline job-1 failed in state FAILED: "
TRACEBACK = 'Traceback (most recent call last):\n  File "transforms/commit.py", line 3, in commit\n'
LOST = f"{FAILED}Error running pipeline.\n{TRACEBACK}RuntimeError: Channel closed prematurely.\n"


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (RuntimeError(f"{FAILED}panic:\ngoroutine 99"), f"{FAILED}panic: goroutine 99"),
        (Forbidden("POST https://dataflow: no"), "403 POST https://dataflow: no"),
        (RuntimeError(LOST), "a worker has ended"),
        (grpc.FutureTimeoutError(), "no answer from its job service"),
        (RuntimeError("x" * 5000), "x" * 300),
    ],
)
def test_an_engine_that_ended_is_one_line(error: Exception, what: str) -> None:
    line = f"E-JOB engine: {what}; see its log, then run again to resume"
    assert str(engine_fault(error)) == line


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"{FAILED}{TRACEBACK}KeyError: 3\n"),
        RuntimeError(f"{LOST}KeyError: 3\n"),
        RuntimeError("E-IO-AUTH gs://b: refused; log in [while running 'Commit']"),
        ValueError("region must be given: add it"),
    ],
)
def test_a_fault_or_bug_of_ours_stays_one(error: Exception) -> None:
    assert engine_fault(error) is error
