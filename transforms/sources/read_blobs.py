"""Read the bytes that a blob stands for: a file, a span of one, or of a compressed member."""

from schemas.samples import Blob
from transforms.sources.npz import UNPACKED
from transforms.storage import Entry, Storage


def read_blob(storage: Storage, blob: Blob) -> bytes:
    """Return a blob's bytes, those of the file that was listed.

    Raises:
        RuntimeError: `E-SRC-CHANGED`, `E-ARR-ZIP`, or a storage fault.
    """
    listed = Entry(blob.name, blob.size_bytes, blob.pin, blob.crc32c)
    span = None if blob.length < 0 else (blob.offset, blob.offset + blob.length)
    if blob.member and span is not None:
        return UNPACKED.bytes_of(storage, listed, blob.member, span)
    return storage.read(blob.name, listed, span)
