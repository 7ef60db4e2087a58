"""Servers that tests start as processes of their own, on a port that is free."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_TRIES, _TRY_S = 300, 0.1


@contextmanager
def serving(command: Callable[[int], Sequence[str]]) -> Iterator[int]:
    """Run a server from enter to exit; gives its port once it answers there.

    Args:
        command: returns the server's command line for a port of 127.0.0.1.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command(port), **quiet) as server:
        for _ in range(_TRIES):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(_TRY_S)
        yield port
        server.terminate()
