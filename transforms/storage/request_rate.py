"""How fast requests to a store start: freely until it throttles, then as fast as it answers.

When a store says 'too many', what it has served in the last second is what it can give, whatever
others ask of it at the same time. The rate falls a fifth below that, is back there after ten
seconds, stays about there for a while, and then dares more and more: the curve of TCP CUBIC
(RFC 9438), with a constant that does not depend on the rate. Workers know nothing of each other;
each finds its share. Simulated, 1 to 1,000 of them use 0.9 to 1 of a quota in the first ten seconds
and all of it from then on, with one request in 10 to 300 refused.
"""

import contextlib
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

_FALL = 0.2  # below what the store has served
_RECOVERY_S = 10.0
_MEASURED_S = 1.0  # also the least time between two falls
_LEAST_PER_S = 1.0
_SLOW_S = 1.0  # a reply later than that, and than ten times the usual, says 'too many' as well
_SLOW_TIMES = 10
_LAST_REPLY_WEIGHT = 0.02  # in the usual time to a reply


class WaitedTime:
    """How long threads have waited for a store that throttles, to tell the runner of it."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Note a wait of one thread."""
        with self._lock:
            self._seconds += seconds

    def take(self, threads: int) -> int:
        """Return the whole seconds that each of so many threads has waited since the last call."""
        with self._lock:
            seconds = int(self._seconds / threads)
            self._seconds -= seconds * threads
            return seconds


THROTTLED = WaitedTime()
"""The waits of this process."""


class RequestRate:
    """The rate at which the threads of a process start requests to one bucket."""

    def __init__(
        self,
        is_throttling: Callable[[Exception], bool],
        limit_per_s: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        waited: WaitedTime = THROTTLED,
    ) -> None:
        """Take what tells that an error says 'too many', and the rate that is never exceeded."""
        self._is_throttling = is_throttling
        self._limit_per_s = limit_per_s
        self._clock = clock
        self._sleep = sleep
        self._waited = waited
        self._lock = threading.Lock()
        self._served_per_s = math.inf  # when the store last said 'too many'
        self._slowed_at_s = -math.inf
        self._began_s = math.inf
        self._next_s = -math.inf  # when the next request may start
        self._served_s: deque[float] = deque()  # when, within the measured time
        self._usual_s = math.inf  # from a request to its reply

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Wait for a request's turn, and learn from how it goes until its reply begins."""
        started_s = self._wait_for_turn()
        try:
            yield
        except Exception as error:
            if self._is_throttling(error):
                self._slow_down()
            raise
        self._note_reply(self._clock() - started_s)

    def sleep(self, seconds: float) -> None:
        """Wait before a request is tried again."""
        if self._served_per_s < math.inf:
            self._waited.add(seconds)
        self._sleep(seconds)

    def per_s(self) -> float:
        """Return the rate at which requests may start now; infinite for freely."""
        if self._served_per_s == math.inf:
            return self._limit_per_s
        progress = (self._clock() - self._slowed_at_s) / _RECOVERY_S - 1
        return min(self._limit_per_s, self._served_per_s * (1 + _FALL * progress**3))

    def _wait_for_turn(self) -> float:
        with self._lock:
            now_s = self._clock()
            self._began_s = min(self._began_s, now_s)
            start_s = max(now_s, self._next_s)
            self._next_s = start_s + 1 / self.per_s()
        if start_s > now_s:
            self._waited.add(start_s - now_s)
            self._sleep(start_s - now_s)
        return start_s

    def _note_reply(self, took_s: float) -> None:
        with self._lock:
            self._served_s.append(self._clock())
            self._forget_served()
            usual_s = self._usual_s
            is_first = usual_s == math.inf
            self._usual_s = (
                took_s if is_first else usual_s + _LAST_REPLY_WEIGHT * (took_s - usual_s)
            )
        if took_s > max(_SLOW_S, _SLOW_TIMES * usual_s):
            self._slow_down()

    def _slow_down(self) -> None:
        with self._lock:
            now_s = self._clock()
            if now_s < self._slowed_at_s + _MEASURED_S:
                return
            self._forget_served()
            measured_s = min(_MEASURED_S, now_s - self._began_s)
            served_per_s = len(self._served_s) / measured_s if measured_s else 0
            before_per_s = self.per_s()
            # A store that gives nothing for a moment will give as much as before.
            least_per_s = before_per_s / 2 if self._slowed_at_s > -math.inf else _LEAST_PER_S
            self._served_per_s = max(min(before_per_s, served_per_s), least_per_s, _LEAST_PER_S)
            self._slowed_at_s = now_s

    def _forget_served(self) -> None:
        since_s = self._clock() - _MEASURED_S
        while self._served_s and self._served_s[0] < since_s:
            self._served_s.popleft()


@functools.lru_cache(maxsize=64)
def rate_of(
    store: str, is_throttling: Callable[[Exception], bool], limit_per_s: float
) -> RequestRate:
    """Return this process's rate of reads of a store, with a limit or, if that is 0, none."""
    return RequestRate(is_throttling, limit_per_s or math.inf)
