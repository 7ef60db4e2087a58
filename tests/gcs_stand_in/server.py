"""The connections of the Cloud Storage stand-in: reads requests, sends replies, spoils them.

Nothing is printed. What goes wrong in the stand-in itself is kept, for the end, and answered with
a status that no client retries.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.gcs_stand_in.faults import What
from tests.gcs_stand_in.protocol import Reply

_BODY_FAULTS = (What.SHORT_BODY, What.TRUNCATED_BODY, What.FLIPPED_BIT, What.STALLED_BODY)


class Outcome(NamedTuple):
    """What to send, and what is to go wrong with it."""

    reply: Reply
    what: What = What.NOTHING

    @property
    def is_reset(self) -> bool:
        return self.what in (What.RESET, What.LOST_REPLY)


Respond = Callable[[str, str, dict[str, str], bytes], Outcome]
"""Decides a request of method, target, headers and body."""


class Server(ThreadingHTTPServer):
    """A thread for each connection; closing ends all connections and waits for their threads.

    Attributes:
        respond: decides what each request gets.
        stall: waits until replies may go on.
        bugs: what went wrong in the stand-in itself.
    """

    request_queue_size = 256
    daemon_threads = False  # the base class waits only for threads that are no daemons

    def __init__(self, respond: Respond, stall: Callable[[], None]) -> None:
        self.respond = respond
        self.stall = stall
        self.bugs: list[Exception] = []
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        # Noted before its thread starts: whatever was accepted is known when the server closes.
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


class _Dropped(Exception):
    """The connection is to end here, without another word."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024  # headers and small bodies go in one packet
    server: Server

    def handle(self) -> None:
        with contextlib.suppress(_Dropped, OSError):  # the client left, or was to be left
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError):  # what is not sent by now cannot be: the client left
            super().finish()
        self.rfile.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        try:
            self._serve()
        except (_Dropped, OSError):
            raise
        except Exception as error:
            self.server.bugs.append(error)
            self.close_connection = True
            self._send(Outcome(Reply(HTTPStatus.BAD_REQUEST, body=repr(error).encode())))

    do_POST = do_PUT = do_DELETE = do_GET

    def _serve(self) -> None:
        body = self._read_body()
        outcome = self.server.respond(self.command, self.path, dict(self.headers.items()), body)
        if outcome.is_reset:
            self._reset()
        if outcome.what in _BODY_FAULTS and not outcome.reply.body:
            raise ValueError(f"{outcome.what} struck a reply without a body: {self.requestline}")
        if outcome.what is What.STALL:
            self.server.stall()
        self._send(outcome)

    def _read_body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise ValueError("the stand-in takes no chunked bodies; send a Content-Length")
        size_bytes = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size_bytes)
        if len(body) != size_bytes:
            raise _Dropped  # cut off by the client: never was a whole request
        return body

    def _send(self, outcome: Outcome) -> None:
        reply, what = outcome
        body = reply.body
        half = len(body) // 2
        if what is What.TRUNCATED_BODY:
            body = body[:half]
        elif what is What.FLIPPED_BIT:
            body = flipped(body)
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
            self.server.stall()
        self.wfile.write(body[half:])

    def _reset(self) -> None:
        """End the connection with a TCP reset instead of the usual farewell."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # The socket closes only with the last file made of it.
        self.rfile.close()
        self.wfile.close()
        self.connection.close()
        raise _Dropped


def flipped(data: bytes) -> bytes:
    """Return data with one bit in the middle changed."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data
