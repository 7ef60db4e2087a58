"""The order of a split's records: what a shuffle sorts by."""

import enum
import functools
import hashlib
from collections.abc import Iterable

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


def places_in_order(keys: list[int], names: list[str]) -> list[int]:
    """Return the places of what is sorted by (key, name). It decides bytes.

    Floats take two thirds of the time of large numbers, and a third where they are 78,000.
    Rounding keeps an order unless it makes two equal.

    >>> places_in_order([2**100 + 1, 7, 2**100], ["a", "b", "c"])
    [1, 2, 0]
    """
    rounded = [*map(float, keys)]
    if len({*rounded}) == len(rounded):
        return sorted(range(len(keys)), key=rounded.__getitem__)
    return [place for _, _, place in sorted(zip(keys, names, range(len(keys)), strict=True))]


@functools.cache
def _begun_hash(split: str, seed: int) -> "hashlib.blake2b":
    """Return the hash of what all keys of a split have in common: half of all there is to hash."""
    begun = hashlib.blake2b(
        key=str(seed).encode(), digest_size=DIGEST_BITS // 8, person=b"tfrec-order"
    )
    begun.update(f"{split}\0".encode())
    return begun
