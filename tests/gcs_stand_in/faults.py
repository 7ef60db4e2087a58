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

    NOTHING = auto()  # only `strike` is called
    STATUS = auto()  # an error reply, without the effect
    RESET = auto()  # the connection is reset, without the effect
    LOST_REPLY = auto()  # the effect, then the connection is reset
    STALL = auto()  # the effect, then the reply hangs until `heal`
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
        name: object that it strikes; None for any. A listing has the name of its prefix.
        times: number of strikes; None for ever.
        after: number of requests that are let through first.
        status: HTTP status of `STATUS`, e.g. 503.
        strike: callback before any effect; e.g. to kill the client.
    """

    what: What
    kind: Kind | None = None
    name: str | None = None
    times: int | None = 1
    after: int = 0
    status: int = 503
    strike: Callable[[], None] | None = None


@dataclass
class Injected:
    """A fault, how many requests it could have struck, and how many it has struck."""

    fault: Fault
    seen: int = 0
    struck: int = 0

    def is_due(self, kind: Kind, name: str) -> bool:
        """Count a request; return whether the fault is to strike it."""
        fault = self.fault
        if fault.kind not in (None, kind) or fault.name not in (None, name):
            return False
        self.seen += 1
        return self.seen > fault.after and self.struck != fault.times


class Quota:
    """A token bucket that holds one second's worth of requests, and starts full."""

    def __init__(self, per_s: float) -> None:
        self._lock = threading.Lock()
        self._per_s = self._tokens = per_s
        self._filled_s = time.monotonic()

    def take(self) -> bool:
        """Return whether one more request is within the quota."""
        with self._lock:
            now_s = time.monotonic()
            refilled = self._tokens + (now_s - self._filled_s) * self._per_s
            self._tokens, self._filled_s = min(refilled, max(self._per_s, 1.0)), now_s
            has_room = self._tokens >= 1
            self._tokens -= has_room
            return has_room
