"""The order of a split's records: what a shuffle sorts by."""

import enum
import functools
import hashlib
import struct
from collections.abc import Iterable, Sequence

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
    return shuffle_keys(split, [key], seed)[0]


def shuffle_keys(split: str, keys: Iterable[str], seed: int) -> list[int]:
    """Return the `shuffle_key` of each of a split's keys; many at once take less time."""
    begun = _begun_hash(split, seed)
    numbers = []
    for key in keys:
        digest = begun.copy()
        digest.update(key.encode())
        numbers.append(int.from_bytes(digest.digest(), "big"))
    return numbers


def pack_rounded(keys: Sequence[int]) -> bytes:
    """Return order keys rounded to floats, 8 bytes each, for `places_in_order`."""
    return struct.pack(f"<{len(keys)}d", *keys)


def places_in_order(rounded: bytes) -> list[int] | None:
    """Return the places of what is sorted by its order key; None where rounding tells too little.

    Rounding keeps an order unless it makes two equal, as equal keys are. It decides bytes.

    >>> places_in_order(pack_rounded([2**100, 7, 2**99])), places_in_order(pack_rounded([7, 7]))
    ([1, 2, 0], None)
    """
    import numpy as np  # late: who only verifies an order has no use for it

    numbers = np.frombuffer(rounded, "<f8")
    places = numbers.argsort()
    in_order = numbers[places]
    return None if (in_order[1:] == in_order[:-1]).any() else places.tolist()


@functools.cache
def _begun_hash(split: str, seed: int) -> "hashlib.blake2b":
    """Return the hash of what all keys of a split have in common: half of all there is to hash."""
    begun = hashlib.blake2b(
        key=str(seed).encode(), digest_size=DIGEST_BITS // 8, person=b"tfrec-order"
    )
    begun.update(f"{split}\0".encode())
    return begun
