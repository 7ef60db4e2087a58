"""Long inputs with a repeated piece: code of more than linear time exceeds the time limit.

Small inputs do not show quadratic time. So the bytes choose a head, a piece and a tail, and a
reader gets the piece as often as fits into 256 kB. The property is the time limit of an input.
"""

from collections.abc import Callable

from beam_tfrec.schemas.faults import find_fault, printable
from tests.fuzz.annotations import run_bytes
from tests.fuzz.images import with_right_checksums
from tests.fuzz.outputs import run_manifest, run_rejected
from tests.fuzz.target import Choices, Target
from tests.small_images import verdict

LONG_BYTES = 2**18
_READERS: tuple[Callable[[bytes], object], ...] = (
    verdict,
    lambda data: verdict(with_right_checksums(data)),
    *(run_bytes, run_manifest, run_rejected),
    lambda data: find_fault(printable(data.decode("utf-8", "replace"))),
    lambda data: find_fault(data.decode("utf-8", "replace")),
)


def run(data: bytes) -> None:
    """Give a reader a long input."""
    choices = Choices(data)
    read = choices.one_of(_READERS)
    head, piece, tail = choices.piece(), choices.piece() or b"\0", choices.rest()
    times = max(1, (LONG_BYTES - len(head) - len(tail)) // len(piece))
    read(head + piece * times + tail)


TARGETS = (Target("growth", run, max_bytes=600),)
