"""Read a file from some place on for another process: `python -m transforms.read_rest`.

`transforms/coco_halves.py` starts it, with a connection.
"""

import sys
from multiprocessing.connection import Connection

from schemas.coco_pieces import read_rest
from transforms.process_memory import keep_freed_memory, spare_the_collector
from transforms.storage import open_storage, split_uri
from transforms.storage.stored_file import read_chunks

_BYTES_AT_ONCE = 2**20


def main() -> None:
    """Read what is asked for, and tell what it holds; a fault is the other process's to find."""
    spare_the_collector()
    keep_freed_memory()
    with Connection(int(sys.argv[1])) as connection:
        uri, entry, start = connection.recv()
        storage = open_storage(split_uri(uri)[0])
        pieces = read_chunks(storage, entry, start, entry.size_bytes, _BYTES_AT_ONCE)
        connection.send(read_rest(pieces))


if __name__ == "__main__":
    main()
