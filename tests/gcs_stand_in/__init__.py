"""A stand-in for Google Cloud Storage in memory, which fails on request.

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

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.gcs_stand_in.protocol import Call, GcsError, Kind, Reply, Store, error_reply, parse_call

__all__ = ["SOURCES", "Fault", "GcsStandIn", "Kind", "What", "put_sources"]

SOURCES = ("--images", "gs://in/photos", "--annotations", "gs://in/instances.json")
"""Flags of the COCO data set that `put_sources` puts into the stand-in."""
_POLL_S = 0.02


class What(Enum):
    """What goes wrong."""

    NOTHING = auto()  # only `strike` is called
    STATUS = auto()  # an error reply, without the effect
    RESET = auto()  # the connection is reset, without the effect
    LOST_REPLY = auto()  # the effect, then the connection is reset
    STALL = auto()  # the effect, then the reply waits until `heal`
    STALLED_BODY = auto()  # headers and half of the body, then the reply waits until `heal`
    SHORT_BODY = auto()  # half of the body of the stated Content-Length, then the end
    TRUNCATED_BODY = auto()  # half of the body, with its Content-Length
    FLIPPED_BIT = auto()  # one bit in the middle of the body is flipped
    FLIPPED_UPLOAD = auto()  # one bit in the middle of the uploaded bytes is flipped


_BODY_FAULTS = (What.SHORT_BODY, What.TRUNCATED_BODY, What.FLIPPED_BIT, What.STALLED_BODY)


@dataclass
class Fault:
    """One thing that goes wrong.

    Attributes:
        what: what goes wrong.
        kind: kind of request that it affects; None for any.
        name: object that it affects; None for any. The name of a listing is its prefix.
        times: number of requests to fail; None for no limit.
        after: number of requests to let through first.
        status: HTTP status of `STATUS`, e.g. 503.
        strike: callback before any effect, e.g. to kill the client.
        seen: number of matching requests so far.
        struck: number of failed requests so far.
    """

    what: What
    kind: Kind | None = None
    name: str | None = None
    times: int | None = 1
    after: int = 0
    status: int = 503
    strike: Callable[[], None] = lambda: None
    seen: int = field(default=0, init=False)
    struck: int = field(default=0, init=False)

    def is_due(self, call: Call) -> bool:
        """Count a request; return whether it is to fail."""
        if self.kind not in (None, call.kind) or self.name not in (None, call.name):
            return False
        self.seen += 1
        return self.seen > self.after and self.struck != self.times


class GcsStandIn(ThreadingHTTPServer):
    """The stand-in; a context manager that serves until exit, with a thread per connection.

    Exit closes every connection, and raises an error of the stand-in itself, which could otherwise
    look like an answer of the service.

    Attributes:
        url: address, e.g. `http://127.0.0.1:40001`.
        bugs: errors of the stand-in itself.
        released: set when stalled replies may go on.
    """

    request_queue_size = 256
    daemon_threads = False  # the base class does not wait for daemon threads

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.bugs: list[Exception] = []
        self._store = Store(self.url)
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._requests: list[Call] = []
        self._connections: set[Any] = set()
        self.released = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.released.set()
        self.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()
        if self.bugs and error is None:
            raise RuntimeError(f"the stand-in itself failed: {self.bugs[0]!r}") from self.bugs[0]

    def make_bucket(self, name: str) -> None:
        """Make a bucket, unless it exists."""
        self._store.make_bucket(name)

    def put(self, bucket: str, name: str, data: bytes, **properties: Any) -> int:
        """Write an object, and its bucket if needed; return the generation."""
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
        self._store.remove(bucket, name)

    def allow(self, *permissions: str) -> None:
        """Give the caller only these permissions, e.g. `allow("storage.objects.get")`."""
        assert self._store.permissions.issuperset(permissions)
        self._store.permissions = set(permissions)

    def inject(self, *faults: Fault) -> None:
        """Add faults; each request meets only the first fault that is due."""
        with self._lock:
            self._faults += map(replace, faults)

    def faults_left(self) -> list[Fault]:
        """Return the faults that affected fewer requests than `times`, or none if it is None."""
        with self._lock:
            return [fault for fault in self._faults if fault.struck < (fault.times or 1)]

    def heal(self) -> None:
        """Drop all faults, and release waiting replies."""
        with self._lock:
            self._faults = []
            released, self.released = self.released, threading.Event()
        released.set()

    @property
    def requests(self) -> list[Call]:
        """All requests so far, in the order of their replies."""
        with self._lock:
            return list(self._requests)

    def count(self, kind: Kind) -> int:
        """Return the number of requests of a kind."""
        return sum(request.kind is kind for request in self.requests)

    def forget_requests(self) -> None:
        """Empty the list of requests."""
        with self._lock:
            self._requests = []

    def respond(self, call: Call) -> tuple[Reply, What]:
        """Handle one request: do its effect, record it; return the reply, and the fault to add."""
        reply, what = self._decide(call)
        with self._lock:
            self._requests.append(call)
        return reply, what

    def _decide(self, call: Call) -> tuple[Reply, What]:
        with self._lock:  # each fault counts its matching requests
            due = [fault for fault in self._faults if fault.is_due(call)]
            for fault in due[:1]:
                fault.struck += 1
        if not due:
            return self._store.answer(call), What.NOTHING
        fault = due[0]
        fault.strike()
        if fault.what is What.STATUS:
            error = GcsError(fault.status, "injected", f"injected: {fault.status}")
            return error_reply(error), fault.what
        if fault.what is What.RESET:
            return Reply(HTTPStatus.OK), fault.what
        if fault.what is What.FLIPPED_UPLOAD:
            call = replace(call, media=_flipped(call.media), body=_flipped(call.body))
        return self._store.answer(call), fault.what

    def process_request(self, request: Any, client_address: Any) -> None:
        # Recorded before its thread starts, so that closing the server finds every connection.
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)


class _Dropped(Exception):
    """The connection must end here, without a reply."""


class _Handler(BaseHTTPRequestHandler):
    """One connection. It prints nothing; a bug gets a status that no client retries."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024  # headers and small bodies go in one packet
    server: GcsStandIn

    def handle(self) -> None:
        with contextlib.suppress(_Dropped, OSError):  # the client left, or a fault ends it
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError):  # the client left, so the rest cannot be sent
            super().finish()
        self.rfile.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        try:
            call = parse_call(self.command, self.path, dict(self.headers.items()), self._body())
            reply, what = self.server.respond(call)
            if what in (What.RESET, What.LOST_REPLY):
                self._reset()
            if what in _BODY_FAULTS and not reply.body:
                raise ValueError(f"{what} struck a reply without a body: {self.requestline}")
            if what is What.STALL:
                self.server.released.wait()
            self._send(reply, what)
        except (_Dropped, OSError):
            raise
        except Exception as error:
            self.server.bugs.append(error)
            self.close_connection = True
            self._send(Reply(HTTPStatus.BAD_REQUEST, body=repr(error).encode()), What.NOTHING)

    do_POST = do_PUT = do_DELETE = do_GET

    def _body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise ValueError("the stand-in takes no chunked bodies; send a Content-Length")
        size_bytes = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size_bytes)
        if len(body) != size_bytes:
            raise _Dropped  # cut off by the client: not a complete request
        return body

    def _send(self, reply: Reply, what: What) -> None:
        body = reply.body
        half = len(body) // 2
        if what is What.TRUNCATED_BODY:
            body = body[:half]
        elif what is What.FLIPPED_BIT:
            body = _flipped(body)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:half])
        if what is What.SHORT_BODY:
            self.close_connection = True
            return
        if what is What.STALLED_BODY:
            self.wfile.flush()
            self.server.released.wait()
        self.wfile.write(body[half:])

    def _reset(self) -> None:
        """End the connection with a TCP reset instead of a normal close."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # The socket closes only after all files made from it.
        self.rfile.close()
        self.wfile.close()
        self.connection.close()
        raise _Dropped


def _flipped(data: bytes) -> bytes:
    """Return data with one bit in the middle flipped."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data


def put_sources(stand_in: GcsStandIn, sources: tuple[Path, Path]) -> None:
    """Put an image folder and its annotation file where `SOURCES` says, and make `gs://out`."""
    images, annotations = sources
    for path in images.iterdir():
        stand_in.put("in", f"photos/{path.name}", path.read_bytes())
    stand_in.put("in", "instances.json", annotations.read_bytes())
    stand_in.make_bucket("out")
