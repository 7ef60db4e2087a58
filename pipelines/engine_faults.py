"""What an engine beside this process says when it ends without a fault of ours."""

import re

from schemas.faults import fault_line

_SAID = re.compile(r'\APipeline \S+ failed in state \w+: ([^\n]*)|^\s*details = "([^"]*)"', re.M)
_PYTHON_FAILED = "Traceback (most recent call last)"
_LONGEST = 300


def engine_fault(error: BaseException) -> tuple[str, str] | None:
    """Return (code, line) where the engine or the way to it ended; else None.

    A bug in one of our steps comes with Python's traceback inside the engine's text: it is a bug,
    and keeps all of its text.

    >>> engine_fault(RuntimeError("Pipeline job-1 failed in state FAILED: worker lost"))[1]
    'E-RUN-ENGINE engine: worker lost; see its log, then run again to resume'
    """
    text = str(error)
    said = _SAID.search(text)
    lost = any(kind.__module__.partition(".")[0] == "grpc" for kind in type(error).__mro__)
    if _PYTHON_FAILED in text or not (lost or said):
        return None
    what = (said[1] or said[2] or "").strip() if said else ""
    what = what[:_LONGEST] or "no answer from its job service"
    line = fault_line("E-RUN-ENGINE", "engine", what, "see its log, then run again to resume")
    return "E-RUN-ENGINE", line
