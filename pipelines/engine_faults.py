"""What an engine says when it refuses, loses or ends a job without a fault of ours."""

import re
from collections.abc import Iterator

from pipelines.job_elsewhere import JOB_ELSEWHERE
from schemas.faults import fault_line

# A job service's text; Dataflow's; that of a download; a request's, by gRPC.
_SAID = re.compile(
    r"\APipeline \S+ failed in state \w+: ([^\n]*)"
    r"|\ADataflow pipeline failed\. State: \w+, Error:\n(?!None\b)\s*([^\n]*)"
    r"|\A(Unable to fetch remote [^\n]*)"
    r'|^\s*details = "([^"]*)"',
    re.MULTILINE,
)
_OF_ENGINES = {"DataflowRuntimeException", "DataflowJobAlreadyExistsError"}
_OF_REQUESTS = ("grpc.", "google.api_core.", "google.auth.")
_PYTHON_FAILED = "Traceback (most recent call last)"
# The job service's own traceback, where a worker of its own has gone.
_WORKER_LOST = re.compile(r"^RuntimeError: Channel closed prematurely\.\s*\Z", re.MULTILINE)
_LONGEST = 300


def engine_fault(error: BaseException) -> tuple[str, str] | None:
    """Return (code, line) where the engine or the way to it failed; else None.

    A bug in one of our steps comes with Python's traceback inside the engine's text: it is a bug,
    and keeps all of its text.

    >>> engine_fault(RuntimeError("Pipeline job-1 failed in state FAILED: worker lost"))[1]
    'E-JOB engine: worker lost; see its log, then run again to resume'
    """
    for cause in _causes(error):
        text = str(cause)
        said = _SAID.search(text)
        if said and _WORKER_LOST.search(text):
            return _line("a worker has ended: channel closed prematurely")
        if _PYTHON_FAILED in text:
            return None
        if not (said or _is_of_an_engine(cause)):
            continue
        first_line = text.strip().partition("\n")[0]
        what = next(filter(None, said.groups()), "") if said else first_line
        what = what.strip()[:_LONGEST] or "no answer from its job service"
        return _line(what)
    return None


def _line(what: str) -> tuple[str, str]:
    where = JOB_ELSEWHERE.page or "engine"
    return "E-JOB", fault_line("E-JOB", where, what, "see its log, then run again to resume")


def _is_of_an_engine(error: BaseException) -> bool:
    """Return whether Google's client, a request or Dataflow's runner raised it, by its class.

    By name, since Google's packages are there only where their extra is installed.
    """
    return any(
        kind.__name__ in _OF_ENGINES or f"{kind.__module__}.".startswith(_OF_REQUESTS)
        for kind in type(error).__mro__
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        around = error.__context__ if isinstance(error, RuntimeError) else None  # as Beam raises
        error = error.__cause__ or around
