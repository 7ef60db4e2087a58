"""The connections of the Cloud Storage stand-in: reads requests, sends replies, spoils them.

Nothing is printed. What goes wrong in the stand-in itself is kept, for the end, and answered with
a status that no client retries.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.gcs_stand_in.faults import Fault, What
from tests.gcs_stand_in.http import Reply

_BODY_FAULTS = (What.SHORT_BODY, What.TRUNCATED_BODY, What.FLIPPED_BIT, What.STALLED_BODY)


@dataclass(frozen=True)
class Outcome:
    """What to send, and what is to go wrong with it."""

    reply: Reply
    fault: Fault | None = None

    @property
    def what(self) -> What | None:
        return self.fault.what if self.fault else None

    @property
    def is_reset(self) -> bool:
        return self.what in (What.RESET, What.LOST_REPLY)


Respond = Callable[[str, str, dict[str, str], bytes], Outcome]
"""Decides a request of method, target, headers and body."""


class Server(ThreadingHTTPServer):
    """A thread for each connection; closing ends all connections and waits for their threads.

    Attributes:
        respond: decides what each request gets.
        wait: waits so many seconds, or for as long as the stand-in wishes; for stalls.
        bugs: what went wrong in the stand-in itself.
    """

    request_queue_size = 256
    daemon_threads = False  # the base class waits only for threads that are no daemons

    def __init__(self, respond: Respond, wait: Callable[[float | None], None]) -> None:
        self.respond = respond
        self.wait = wait
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
            self._send(Outcome(Reply(HTTPStatus.BAD_REQUEST, (), repr(error).encode())))

    do_POST = do_PUT = do_DELETE = do_GET

    def _serve(self) -> None:
        body = self._read_body()
        outcome = self.server.respond(self.command, self.path, dict(self.headers.items()), body)
        if outcome.is_reset:
            self._reset()
        if outcome.what in _BODY_FAULTS and not outcome.reply.body:
            raise ValueError(f"{outcome.fault} struck a reply without a body: {self.requestline}")
        if outcome.fault and outcome.what is What.STALL:
            self._stall(outcome.fault)
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
        body = _spoiled(outcome)
        if outcome.what is What.SHORT_BODY:
            self.close_connection = True
        self._send_head(outcome.reply, len(body))
        if outcome.reply.is_chunked:
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        half = len(body) // 2
        if outcome.what is What.SHORT_BODY:
            body = body[:half]
        elif outcome.fault and outcome.what is What.STALLED_BODY:
            self.wfile.write(body[:half])
            self._stall(outcome.fault)
            body = body[half:]
        self.wfile.write(body)

    def _send_head(self, reply: Reply, size_bytes: int) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        if reply.is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif reply.status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(size_bytes))
        self.end_headers()

    def _stall(self, fault: Fault) -> None:
        self.wfile.flush()
        self.server.wait(fault.seconds)

    def _reset(self) -> None:
        """End the connection with a TCP reset instead of the usual farewell."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # The socket closes only with the last file made of it.
        self.rfile.close()
        self.wfile.close()
        self.connection.close()
        raise _Dropped


def _spoiled(outcome: Outcome) -> bytes:
    """Return the body whose length the header is to give."""
    body = outcome.reply.body
    middle = len(body) // 2
    if outcome.what is What.TRUNCATED_BODY:
        return body[:middle]
    if outcome.what is What.FLIPPED_BIT:
        return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
    return body
