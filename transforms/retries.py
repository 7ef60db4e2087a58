"""One retry layer for transient trouble: by elapsed time, with full jitter."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from schemas.faults import fault_line

_LOG = logging.getLogger(__name__)
DEADLINE_S = 900.0
_TOLD_AFTER_S = 10.0
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 30.0

T = TypeVar("T")


def retry(
    operation: Callable[[], T],
    is_transient: Callable[[Exception], bool],
    where: Callable[[], str],
    *,
    deadline_s: float = DEADLINE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return the operation's result, trying again after transient errors.

    Waits grow from 0.1 s to 30 s, each drawn uniformly below its bound ('full jitter', AWS
    Architecture Blog, 2015), and the tries end by elapsed time. Other errors pass through. What is
    retried for longer than 10 s is logged, once.

    Raises:
        RuntimeError: `E-IO-RETRIES` when errors are still transient at the deadline.
    """
    started_s = clock()
    bound_s = _FIRST_WAIT_S
    is_told = False
    while True:
        try:
            return operation()
        except Exception as error:
            if not is_transient(error):
                raise
            elapsed_s = clock() - started_s
            if elapsed_s >= deadline_s:
                what = f"still failing after {elapsed_s:.0f} s ({type(error).__name__}: {error})"
                remedy = "run again to resume when the storage is well"
                raise RuntimeError(fault_line("E-IO-RETRIES", where(), what, remedy)) from error
            wait_s = min(random.uniform(0, bound_s), deadline_s - elapsed_s)
            if not is_told and elapsed_s + wait_s > _TOLD_AFTER_S:
                is_told = True
                why = f"{type(error).__name__}: {error}".partition("\n")[0]
                left_s = deadline_s - elapsed_s
                _LOG.warning("retrying %s for up to %.0f s more (%s)", where(), left_s, why)
        sleep(wait_s)
        bound_s = min(2 * bound_s, _LONGEST_WAIT_S)
