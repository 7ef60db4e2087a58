"""The faults of the Cloud Storage stand-in: what can go wrong, for which request, how often."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """What a request is for."""

    LIST = auto()
    STAT = auto()  # metadata of an object
    READ = auto()  # bytes of an object, by either API
    UPLOAD = auto()  # a whole object, or the start of a session
    UPLOAD_CHUNK = auto()  # of a session
    DELETE = auto()
    BUCKET = auto()  # metadata of a bucket, which only Beam's staging asks for
    OTHER = auto()  # not served


class What(Enum):
    """What goes wrong."""

    STATUS = auto()  # an error reply, without the effect
    RESET = auto()  # the connection is reset, without the effect
    LOST_REPLY = auto()  # the effect, then the connection is reset
    STALL = auto()  # the effect, then the reply hangs
    STALLED_BODY = auto()  # the headers and half of the body come, then the reply hangs
    SHORT_BODY = auto()  # half of the body that Content-Length promises, then the end
    TRUNCATED_BODY = auto()  # half of the body, and Content-Length agrees with it
    FLIPPED_BIT = auto()  # one bit in the middle of the body
    FLIPPED_UPLOAD = auto()  # one bit in the middle of what is uploaded


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        what: kind of trouble.
        kind: requests that it strikes; None for any.
        name: object that it strikes, exactly or as a predicate; None for any. A listing has the
            name of its prefix. A predicate may change objects, e.g. rewrite one just before it is
            read; it must not inject faults.
        times: number of strikes; None for ever.
        after: number of requests that are let through first.
        status: HTTP status of `STATUS`, e.g. 503.
        seconds: length of `STALL` and `STALLED_BODY`; None until `GcsStandIn.release()`.
        strike: callback before any effect; e.g. to kill the client.
    """

    what: What
    kind: Kind | None = None
    name: str | Callable[[str], bool] | None = None
    times: int | None = 1
    after: int = 0
    status: int = 503
    seconds: float | None = None
    strike: Callable[[], None] | None = None

    def strikes(self, kind: Kind, name: str) -> bool:
        """Tell whether a request is one that this fault is for."""
        if self.kind not in (None, kind):
            return False
        return self.name(name) if callable(self.name) else self.name in (None, name)


class FaultPlan:
    """The injected faults, in order, and how often each has struck."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[_Injected] = []

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(_Injected(fault))

    def take(self, kind: Kind, name: str) -> Fault | None:
        """Return the fault that this request meets: the first that is due; None for none.

        Every fault counts the requests it could strike, those that another one took included.
        """
        taken = None
        with self._lock:
            for injected in self._faults:
                fault = injected.fault
                if not fault.strikes(kind, name):
                    continue
                injected.seen += 1
                if taken is None and injected.seen > fault.after and injected.struck != fault.times:
                    injected.struck += 1
                    taken = fault
        return taken

    def left(self) -> list[Fault]:
        """Return the faults that have not struck as often as they were to; for ever is once."""
        with self._lock:
            return [i.fault for i in self._faults if i.struck < (i.fault.times or 1)]

    def clear(self) -> None:
        """Drop all faults."""
        with self._lock:
            self._faults = []


@dataclass
class _Injected:
    fault: Fault
    seen: int = 0
    struck: int = 0


class Quota:
    """A token bucket that holds one second's worth of requests, and starts full."""

    def __init__(self, per_s: float | None) -> None:
        self._lock = threading.Lock()
        self.per_s = per_s
        self._tokens = per_s or 0.0
        self._filled_s = time.monotonic()

    def take(self) -> bool:
        """Tell whether one more request is within the quota; None is no quota."""
        if self.per_s is None:
            return True
        with self._lock:
            now = time.monotonic()
            refilled = self._tokens + (now - self._filled_s) * self.per_s
            self._tokens = min(refilled, max(self.per_s, 1.0))
            self._filled_s = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
