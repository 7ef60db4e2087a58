"""Retry transient errors, and slow down when a store throttles.

Requests start without delay until the store replies 'too many requests'. The rate that it served in
the last second is then taken as its quota. Our rate falls to 0.8 of the quota, reaches the quota
after ten seconds and 1.2 of it after twenty. It follows the curve of TCP CUBIC (RFC 9438), with a
constant that does not depend on the rate. From then on it doubles every five seconds.

Workers do not communicate; each finds its share. In simulations, 1 to 1,000 workers used 0.9 to 1
of a quota in the first ten seconds and all of it later. The store refused one request in 5 to 300.
"""

import contextlib
import functools
import logging
import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from beam_tfrec.schemas.faults import run_fault

_LOG = logging.getLogger(__name__)
DEADLINE_S = 900.0
"""Longest time that an operation is retried."""

_LOGGED_AFTER_S = 10.0
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 30.0

_FALL = 0.2  # share of the served rate
_RECOVERY_S = 10.0
_MEASURED_S = 1.0  # also the shortest time between two falls
_MEASURED_REPLIES = 20  # at least, even if they took longer
_LEAST_PER_S = 1.0

T = TypeVar("T")


def retry(
    operation: Callable[[], T],
    is_transient: Callable[[Exception], bool],
    where: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return the operation's result; retry after transient errors, and raise others.

    Waits are drawn uniformly below a bound that grows from 0.1 s to 30 s ('full jitter', AWS
    Architecture Blog, 2015). Retries stop after `DEADLINE_S`, and are logged once after 10 s.

    Raises:
        RuntimeError: `E-IO-RETRIES`: still failing at the deadline.
    """
    started_s = clock()
    bound_s = _FIRST_WAIT_S
    is_logged = False
    while True:
        try:
            return operation()
        except Exception as error:
            if not is_transient(error):
                raise
            elapsed_s = clock() - started_s
            if elapsed_s >= DEADLINE_S:
                what = f"still failing after {elapsed_s:.0f} s ({type(error).__name__}: {error})"
                remedy = "run again to resume when the storage works"
                raise run_fault("E-IO-RETRIES", where, what, remedy) from error
            wait_s = min(random.uniform(0, bound_s), DEADLINE_S - elapsed_s)
            if not is_logged and elapsed_s + wait_s > _LOGGED_AFTER_S:
                is_logged = True
                why = f"{type(error).__name__}: {error}".partition("\n")[0]
                left_s = DEADLINE_S - elapsed_s
                _LOG.warning("retrying %s for up to %.0f s more (%s)", where, left_s, why)
        sleep(wait_s)
        bound_s = min(2 * bound_s, _LONGEST_WAIT_S)


class WaitedTime:
    """Time that threads waited for a throttling store; reported to the runner."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Add one thread's wait."""
        with self._lock:
            self._seconds += seconds

    def take(self, threads: int) -> int:
        """Return the mean wait per thread since the last call, in whole seconds."""
        with self._lock:
            seconds = int(self._seconds / threads)
            self._seconds -= seconds * threads
            return seconds


THROTTLED = WaitedTime()
"""Waits of this process."""


@dataclass(eq=False)
class RequestRate:
    """Rate at which the threads of a process start requests to one bucket.

    Attributes:
        is_throttling: test for the error of a store that throttles.
        limit_per_s: limit of the rate.
        clock: the time in seconds.
        pause: function that waits for seconds.
    """

    is_throttling: Callable[[Exception], bool]
    limit_per_s: float = math.inf
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        """Begin without replies."""
        self._lock = threading.Lock()
        self._served_per_s = math.inf  # rate at the last throttling
        self._slowed_at_s = -math.inf
        self._next_s = -math.inf  # time when the next request may start
        self._replies: deque[tuple[float, bool]] = deque()  # time, and whether served

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Wait until a request may start; the block makes the request."""
        with self._lock:
            now_s = self.clock()
            start_s = max(now_s, self._next_s)
            self._next_s = start_s + 1 / self.per_s()
        if start_s > now_s:
            THROTTLED.add(start_s - now_s)
            self.pause(start_s - now_s)
        try:
            yield
        except Exception as error:
            if self.is_throttling(error):
                self._keep_reply(served=False)
            raise
        self._keep_reply(served=True)

    def sleep(self, seconds: float) -> None:
        """Wait before a retry; count it as throttled once the store has throttled."""
        if self._served_per_s < math.inf:
            THROTTLED.add(seconds)
        self.pause(seconds)

    def per_s(self) -> float:
        """Return the current rate of requests, or infinity without a limit."""
        if self._served_per_s == math.inf:
            return self.limit_per_s
        progress = (self.clock() - self._slowed_at_s) / _RECOVERY_S - 1
        growth = 4 ** min(max(progress - 1, 0), 32)  # after two recoveries; cap for overflow
        factor = (1 + _FALL * min(progress, 1) ** 3) * growth
        return min(self.limit_per_s, self._served_per_s * factor)

    def _keep_reply(self, *, served: bool) -> None:
        """Record a reply; slow down if the store refused and enough replies are known."""
        replies = self._replies
        with self._lock:
            now_s = self.clock()
            replies.append((now_s, served))
            while len(replies) > _MEASURED_REPLIES and replies[0][0] < now_s - _MEASURED_S:
                replies.popleft()
            few = len(replies) < _MEASURED_REPLIES
            if served or few or now_s < self._slowed_at_s + _MEASURED_S:
                return
            served_per_s = sum(ok for _, ok in replies) / max(now_s - replies[0][0], 0.001)
            before_per_s = self.per_s()
            # A store that serves nothing for a moment usually recovers soon.
            least_per_s = before_per_s / 2 if self._slowed_at_s > -math.inf else 0
            self._served_per_s = max(min(before_per_s, served_per_s), least_per_s, _LEAST_PER_S)
            self._slowed_at_s = now_s


@functools.lru_cache(maxsize=64)
def rate_of(
    store: str, limit_per_s: float, is_throttling: Callable[[Exception], bool] = lambda _: False
) -> RequestRate:
    """Return this process's rate for a store; a limit of 0 means no limit."""
    return RequestRate(is_throttling, limit_per_s or math.inf)


os.register_at_fork(after_in_child=rate_of.cache_clear)  # a copied lock may never be released
