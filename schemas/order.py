"""The order of a split's records: what a shuffle sorts by."""

import enum
import functools
import hashlib

DIGEST_BITS = 128


class Order(enum.Enum):
    """A split's order: a seeded uniform shuffle, or the order of the annotation file."""

    SHUFFLED = "shuffled"
    INPUT = "input"


def shuffle_key(split: str, key: str, seed: int) -> int:
    """Return the number that a shuffled split is sorted by; ties go by key. It decides bytes.

    The first 128 bits of a keyed hash of split and key, hence a uniform order that no runner,
    worker or arrival order changes.
    """
    digest = _keyed_hash(seed).copy()  # made anew, it takes twice as long
    digest.update(f"{split}\0{key}".encode())
    return int.from_bytes(digest.digest(), "big")


@functools.cache
def _keyed_hash(seed: int) -> "hashlib.blake2b":
    return hashlib.blake2b(
        key=str(seed).encode(), digest_size=DIGEST_BITS // 8, person=b"tfrec-order"
    )
