"""Read a long file of objects by two: its front in this process, its rest in one beside it.

Such a file takes as long as one core decodes it, and one interpreter has one core.
"""

import contextlib
import logging
from multiprocessing.connection import Pipe

from schemas.coco_pieces import CocoPieces, join_halves, read_front, read_in_pieces
from schemas.json_pieces import find_cut
from transforms.gate import usable_cores
from transforms.process_beside import start_beside
from transforms.source_text import SourceText
from transforms.storage import Entry, Storage, is_local
from transforms.storage.stored_file import read_chunks

SHORTEST_BYTES = 2**27
"""Of a file that two read: to start a process takes what decoding 30 MB does."""

_LOG = logging.getLogger(__name__)
_MODULE = "transforms.read_rest"
_LOOKED_AT_BYTES = 2**20  # for the end of an annotation


def read_in_halves(text: SourceText) -> CocoPieces | None:
    """Return what a file of objects holds; None where it must be read as a whole.

    What two cannot read, for whatever reason, this process reads alone. So it does with a file in a
    store, whose bytes are what it waits for.

    Raises:
        RuntimeError: `E-ARG` when there is no such file, or a storage fault.
    """
    if not is_local(text.uri) or usable_cores() < 2:
        return read_in_pieces(text)
    storage, entry = text.found
    cut = _find_cut(storage, entry) if entry.size_bytes >= SHORTEST_BYTES else None
    if cut is None:
        return read_in_pieces(text)
    try:
        reader = _RestReader(text.uri, entry, cut + 1)
    except OSError as error:
        _LOG.info("reads %s in one process: %s", text.uri, error)
        return read_in_pieces(text)
    with contextlib.closing(reader):
        front = read_front(text.pieces(until=cut))
        read = None if front is None else join_halves(front, reader.take())
    return read_in_pieces(text) if read is None else read


def _find_cut(storage: Storage, entry: Entry) -> int | None:
    """Return where, behind the middle of a file, an annotation ends and a comma stands."""
    middle = entry.size_bytes // 2
    end = min(middle + _LOOKED_AT_BYTES, entry.size_bytes)
    at = find_cut(next(read_chunks(storage, entry, middle, end, _LOOKED_AT_BYTES), b""))
    return None if at is None else middle + at


class _RestReader:
    """A process that reads a file from some place on."""

    def __init__(self, uri: str, entry: Entry, start: int) -> None:
        """Start it.

        Raises:
            OSError: when none can be started.
        """
        with contextlib.ExitStack() as begun:
            self._connection, theirs = Pipe()
            begun.push(self._connection)
            with theirs:
                self._process = start_beside(_MODULE, theirs.fileno())
            begun.callback(self._process.wait)
            begun.callback(self._process.kill)
            self._connection.send((uri, entry, start))
            begun.pop_all()

    def take(self) -> CocoPieces | None:
        """Return what it has read; None when it could not."""
        try:
            read: CocoPieces | None = self._connection.recv()
        except (EOFError, OSError) as error:
            _LOG.info("the process beside this one has read nothing: %r", error)
            return None
        return read

    def close(self) -> None:
        """Have it end, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
