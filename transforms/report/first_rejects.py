"""Find an example of each reason in `rejected.jsonl`, which may be as long as a data set."""

from collections.abc import Collection, Iterator

from schemas.faults import Rejected
from schemas.manifest import REJECTED_NAME, from_json
from transforms.storage import Storage

_PIECE_BYTES = 1 << 20
_MAX_LINE_BYTES = 16 << 20  # a line names all annotations of its sample


def first_rejects(storage: Storage, codes: Collection[str]) -> list[Rejected]:
    """Return the first reject of each reason, in the order of the file.

    Reads no further than to the last of them.

    Args:
        storage: of the data set.
        codes: the reasons that there are.

    Raises:
        ValueError: where a line is no reject.
        RuntimeError: a storage fault.
    """
    found: dict[str, Rejected] = {}
    wanted = set(codes)
    if not wanted:
        return []
    for line in _lines(storage):
        rejected = from_json(line, Rejected)
        found.setdefault(rejected.code, rejected)
        if wanted <= found.keys():
            break
    return list(found.values())


def _lines(storage: Storage) -> Iterator[bytes]:
    file = storage.stat(REJECTED_NAME)
    if file is None or file.kind != "file":
        raise ValueError("it is not there")
    rest = b""
    for start in range(0, file.size_bytes, _PIECE_BYTES):
        end = min(start + _PIECE_BYTES, file.size_bytes)
        *lines, rest = (rest + storage.read(REJECTED_NAME, file, (start, end))).split(b"\n")
        yield from lines
        if len(rest) > _MAX_LINE_BYTES:
            raise ValueError(f"a line has more than {_MAX_LINE_BYTES} bytes")
    if rest:
        yield rest
