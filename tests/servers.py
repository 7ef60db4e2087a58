"""Servers that tests start as processes of their own, on a port that is free."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_TRIES, _TRY_S = 300, 0.1


def free_port() -> int:
    """Return a port of 127.0.0.1 where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def serving(command: Callable[[int], Sequence[str]]) -> Iterator[int]:
    """Run a server from enter to exit; gives its port once it answers there.

    Args:
        command: returns the server's command line for a port of 127.0.0.1.
    """
    with started(command) as (port, _):
        yield port


@contextmanager
def started(command: Callable[[int], Sequence[str]]) -> Iterator[tuple[int, int]]:
    """Run a server as `serving` does; gives its port and its process id."""
    port = free_port()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command(port), **quiet) as server:
        for _ in range(_TRIES):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(_TRY_S)
        yield port, server.pid
        server.terminate()
