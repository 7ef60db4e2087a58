"""Long inputs of a repeated piece: what takes more than linear time takes longer than allowed.

Small inputs show no quadratic time. So the bytes choose a head, a piece and a tail, and a reader
gets the piece as often as fits into 256 kB; a run's limit of seconds is the property.
"""

import json
from collections.abc import Callable, Iterator

from schemas.faults import find_fault, printable
from tests import small_images as small
from tests.conftest import coco_dict
from tests.fuzz.annotations import run_bytes
from tests.fuzz.images import with_right_checksums
from tests.fuzz.outputs import run_manifest, run_rejected
from tests.fuzz.target import Choices, Target
from transforms.images.check_images import check_image

LONG_BYTES = 2**18


def _check(data: bytes) -> None:
    check_image(data)


def _check_png(data: bytes) -> None:
    check_image(with_right_checksums(data))


def _find_fault(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    find_fault(printable(text))
    find_fault(text)


_READERS: tuple[Callable[[bytes], None], ...] = (
    *(_check, _check_png, run_bytes, run_manifest, run_rejected, _find_fault),
)


def run(data: bytes) -> None:
    """Give a reader a long input."""
    choices = Choices(data)
    read = choices.one_of(_READERS)
    head, piece, tail = choices.piece(), choices.piece() or b"\0", choices.rest()
    times = max(1, (LONG_BYTES - len(head) - len(tail)) // len(piece))
    read(head + piece * times + tail)


def _long(reader: int, head: bytes, piece: bytes, tail: bytes = b"") -> bytes:
    return bytes([reader, len(head)]) + head + bytes([len(piece)]) + piece + tail


def seeds() -> Iterator[bytes]:
    jpeg = small.gray_jpeg_with()
    for piece in (b"\xff", b"\0", b"\xff\xe0\0\2", b"\xff\xd0", b"\xff\xd9", b"\xff\0"):
        yield _long(0, small.SOI, piece, jpeg[2:])
        yield _long(0, jpeg[:-2], piece, small.EOI)
    scans = small.jpeg(small.QUANTIZATION, small.frame(marker=0xC2), small.HUFFMAN, end=b"")
    yield _long(0, scans, small.segment(0xDA, b"\1\1\0\0\0\0") + b"\x3f", small.EOI)
    yield _long(0, small.gif(end=b""), small.GIF_FRAME, b";")
    yield _long(0, small.gif(end=b"") + b"!\xfe", b"\1a", b"\0;")
    chunk = small.chunk(b"tEXt")
    yield _long(1, small.png(small.ihdr(), end=b""), chunk, small.idat() + small.IEND)
    yield _long(1, small.png(end=b""), small.idat(), small.IEND)
    for piece in (b"[", b'"', b'\\"', b'{"a":', b'"a":1,', b'"images":[],', b'"\\\\', b"[],"):
        for reader in (2, 3, 4):
            yield _long(reader, b'{"a": ', piece, b"}")
    head, _, tail = json.dumps(coco_dict(1, objects=1)).partition('"annotations": [')
    one, _, _ = tail.partition(', "segmentation"')
    yield _long(2, f'{head}"annotations": ['.encode(), f"{one}}},".encode(), b"{}]}")
    yield _long(4, b"", b"\n")
    for piece in (b"E-ARG ", b": ", b"; ", b"E-ARG a: ", b"E-A-", b"[while running '", b"E-ARG: ;"):
        yield _long(5, b"E-ARG ", piece, b": a; b")


TARGETS = (Target("growth", run, seeds, "", 600),)
