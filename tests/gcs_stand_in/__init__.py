"""A stand-in of Google Cloud Storage in memory, which fails on request.

It serves the JSON API and the reads of the XML API over HTTP/1.1 on a port of its own, so that the
real clients talk to it, and injects faults into chosen requests:

    with GcsStandIn() as gcs:
        gcs.put("b", "a.jpg", b"...")
        gcs.inject(Fault(What.STATUS, Kind.READ, status=503, times=2))
        os.environ["STORAGE_EMULATOR_HOST"] = gcs.url
        open_storage("gs://b").read("a.jpg")
        assert gcs.count(Kind.READ) == 3
        assert gcs.faults_left() == []
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Self

from tests.gcs_stand_in.faults import Fault, Injected, Kind, Quota, What
from tests.gcs_stand_in.protocol import (
    ALL_PERMISSIONS,
    Call,
    Protocol,
    Reply,
    error_reply,
    parse_call,
)
from tests.gcs_stand_in.server import Outcome, Server, flipped
from tests.gcs_stand_in.store import GcsError, Store

__all__ = ["Fault", "GcsStandIn", "Kind", "Request", "What"]

_POLL_S = 0.02


@dataclass(frozen=True)
class Request:
    """A request that came, and what it got.

    Attributes:
        name: of the object; the prefix for a listing; empty for a bucket.
        status: of the reply; None where the connection was reset instead.
        query: its parameters; not compared.
        headers: by lower-case name; not compared.
    """

    kind: Kind
    bucket: str
    name: str
    method: str
    status: int | None
    query: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    headers: dict[str, str] = field(default_factory=dict, compare=False, repr=False)


class GcsStandIn:
    """The stand-in; a context manager that serves from enter to exit.

    Exit waits for every connection and raises what went wrong in the stand-in itself, so that a
    mistake of the stand-in is not taken for an answer.

    Attributes:
        url: where it is, e.g. `http://127.0.0.1:40001`.
        latency_s: how long each request waits before it is looked at; may be set at any time.
    """

    def __init__(self) -> None:
        self.latency_s = 0.0
        self._server = Server(self._respond, lambda: self._released.wait())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._store = Store()
        self._protocol = Protocol(self._store, self.url)
        self._quota: Quota | None = None
        self._lock = threading.Lock()
        self._faults: list[Injected] = []
        self._requests: list[Request] = []
        self._closing = threading.Event()
        self._released = threading.Event()
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="gcs-stand-in", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._closing.set()
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self._server.bugs and error is None:
            bug = self._server.bugs[0]
            raise RuntimeError(f"the stand-in itself failed: {bug!r}") from bug

    def make_bucket(self, name: str) -> None:
        """Make a bucket, unless it is there."""
        self._store.make_bucket(name)

    def put(self, bucket: str, name: str, data: bytes, **properties: Any) -> int:
        """Write an object, making its bucket if need be, and return the generation."""
        self.make_bucket(bucket)
        return self._store.insert(bucket, name, data, properties).generation

    def put_all(self, bucket: str, names: Sequence[str], data: bytes = b"1") -> None:
        """Write objects of equal bytes."""
        for name in names:
            self.put(bucket, name, data)

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Return all objects of a bucket by name, sorted."""
        return {name: found.data for name, found in self._store.objects(bucket).items()}

    def remove(self, bucket: str, name: str) -> None:
        """Delete an object."""
        self._store.delete(bucket, name)

    def allow(self, *permissions: str) -> None:
        """Let the caller do these things only, e.g. `allow("storage.objects.get")`."""
        assert ALL_PERMISSIONS.issuperset(permissions)
        self._protocol.permissions = set(permissions)

    def limit(self, quota_per_s: float) -> None:
        """Answer 429 to requests above so many a second; one second's worth may come at once."""
        self._quota = Quota(quota_per_s)

    def inject(self, *faults: Fault) -> None:
        """Add faults; a request meets the first that is due, and only that one."""
        with self._lock:
            self._faults += map(Injected, faults)

    def faults_left(self) -> list[Fault]:
        """Return the faults that have not struck as often as they were to; for ever is once."""
        with self._lock:
            return [i.fault for i in self._faults if i.struck < (i.fault.times or 1)]

    def heal(self) -> None:
        """Drop all faults and release what hangs."""
        with self._lock:
            self._faults = []
            released, self._released = self._released, threading.Event()
        released.set()

    @property
    def requests(self) -> list[Request]:
        """All requests so far, in the order in which their replies were decided."""
        with self._lock:
            return list(self._requests)

    def count(self, kind: Kind, status: int | None = None) -> int:
        """Return how many requests of a kind came; with `status`, how many got that one."""
        return sum(
            request.kind is kind and status in (None, request.status) for request in self.requests
        )

    def forget_requests(self) -> None:
        """Begin the list of requests anew."""
        with self._lock:
            self._requests = []

    def _respond(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Outcome:
        """Decide one request: have its effect, note it, and return what to send."""
        self._closing.wait(self.latency_s)
        try:
            call = parse_call(method, target, headers, body)
        except (ValueError, GcsError) as error:
            call = Call(Kind.OTHER, method, "", target, {}, {})
            refusal = GcsError(HTTPStatus.BAD_REQUEST, "parseError", str(error))
            outcome = Outcome(error_reply(call, refusal))
        else:
            outcome = self._decide(call)
        status = None if outcome.is_reset else int(outcome.reply.status)
        parts = call.kind, call.bucket, call.name, call.method, status, call.query, call.headers
        with self._lock:
            self._requests.append(Request(*parts))
        return outcome

    def _decide(self, call: Call) -> Outcome:
        if self._quota is not None and not self._quota.take():
            message = "The project exceeded the rate limit for requests."
            too_many = GcsError(HTTPStatus.TOO_MANY_REQUESTS, "rateLimitExceeded", message)
            return Outcome(error_reply(call, too_many))
        with self._lock:  # each counts the requests that it could strike
            due = [fault for fault in self._faults if fault.is_due(call.kind, call.name)]
            for injected in due[:1]:
                injected.struck += 1
        if not due:
            return Outcome(self._protocol.answer(call))
        fault = due[0].fault
        if fault.strike is not None:
            fault.strike()
        if fault.what is What.STATUS:
            error = GcsError(fault.status, "injected", f"injected: {fault.status}")
            return Outcome(error_reply(call, error))
        if fault.what is What.RESET:
            return Outcome(Reply(HTTPStatus.OK), fault.what)
        if fault.what is What.FLIPPED_UPLOAD:
            call = replace(call, media=flipped(call.media), body=flipped(call.body))
        return Outcome(self._protocol.answer(call), fault.what)
