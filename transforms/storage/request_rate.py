"""How fast requests to a store start: freely until it throttles, then as fast as it answers.

When a store says 'too many', what it has served in the last second is what it can give, whatever
others ask of it at the same time. The rate falls a fifth below that, is back there after ten
seconds and a fifth above after twenty, along the curve of TCP CUBIC (RFC 9438), with a constant
that does not depend on the rate; from then on it doubles every five. Workers know nothing of each
other; each finds its share. Simulated, 1 to 1,000 of them use 0.9 to 1 of a quota in the first ten
seconds and all of it from then on, with one request in 5 to 300 refused. A single error among many
replies costs a fifth of the rate for some seconds, one among few nothing.
"""

import contextlib
import functools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

_FALL = 0.2  # below what the store has served
_RECOVERY_S = 10.0
_DOUBLING_S = 5.0  # after two recoveries
_MOST_DOUBLINGS = 64  # as good as no limit; of a thousand, no float holds the result
_MEASURED_S = 1.0  # also the least time between two falls
_MEASURED_REPLIES = 20  # at least, over however long
_LEAST_PER_S = 1.0
_SHORTEST_S = 0.001
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
        self._next_s = -math.inf  # when the next request may start
        self._replies: deque[tuple[float, bool]] = deque()  # when, and whether served
        self._usual_s = math.inf  # from a request to its reply

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Wait for a request's turn, and learn from how it goes until its reply begins."""
        started_s = self._wait_for_turn()
        try:
            yield
        except Exception as error:
            if self._is_throttling(error):
                with self._lock:
                    self._keep_reply(served=False)
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
        doublings = max(progress - 1, 0) * _RECOVERY_S / _DOUBLING_S
        factor = (1 + _FALL * min(progress, 1) ** 3) * 2 ** min(doublings, _MOST_DOUBLINGS)
        return min(self._limit_per_s, self._served_per_s * factor)

    def _wait_for_turn(self) -> float:
        with self._lock:
            now_s = self._clock()
            start_s = max(now_s, self._next_s)
            self._next_s = start_s + 1 / self.per_s()
        if start_s > now_s:
            self._waited.add(start_s - now_s)
            self._sleep(start_s - now_s)
        return start_s

    def _note_reply(self, took_s: float) -> None:
        with self._lock:
            self._keep_reply(served=True)
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
            if len(self._replies) < _MEASURED_REPLIES or now_s < self._slowed_at_s + _MEASURED_S:
                return
            served = sum(is_served for _, is_served in self._replies)
            served_per_s = served / max(now_s - self._replies[0][0], _SHORTEST_S)
            before_per_s = self.per_s()
            # A store that gives nothing for a moment will give as much as before.
            least_per_s = before_per_s / 2 if self._slowed_at_s > -math.inf else _LEAST_PER_S
            self._served_per_s = max(min(before_per_s, served_per_s), least_per_s, _LEAST_PER_S)
            self._slowed_at_s = now_s

    def _keep_reply(self, *, served: bool) -> None:
        now_s = self._clock()
        self._replies.append((now_s, served))
        while len(self._replies) > _MEASURED_REPLIES and self._replies[0][0] < now_s - _MEASURED_S:
            self._replies.popleft()


@functools.lru_cache(maxsize=64)
def rate_of(
    store: str, is_throttling: Callable[[Exception], bool], limit_per_s: float
) -> RequestRate:
    """Return this process's rate of reads of a store, with a limit or, if that is 0, none."""
    return RequestRate(is_throttling, limit_per_s or math.inf)


os.register_at_fork(after_in_child=rate_of.cache_clear)  # a lock may be held by no thread
