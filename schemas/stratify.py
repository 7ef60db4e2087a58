"""Divide samples into splits, so that each split gets its share of every class.

This is iterative stratification (Sechidis, Tsoumakas and Vlahavas, 2011): rare classes first, since
only they leave little choice. Samples of one group are placed together. The result depends on
digests of keys and groups, on classes and shares, and on nothing else. Changing it is a breaking
change.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # only stratified runs need numpy
    from numpy.typing import NDArray

NEW = -1
"""In place of a split's number: no earlier data set holds the sample."""

_CHUNK = 65_536  # groups that are Python objects at once


def stratify(
    digests: "NDArray",
    owners: "NDArray",
    classes: "NDArray",
    shares: Sequence[Fraction],
    earlier: "NDArray",
) -> "tuple[NDArray, NDArray]":
    """Return the digest of each group, sorted, and the number of its split.

    A group goes to a split with room for it in its rarest class; if there is none, to one with any
    room. Among these it goes where most is missing: of the rarest class in the end, and of its
    classes and of all samples so far. So if each sample has one class and is its own group, the
    count of each class in each split is within one of its share. If each group has one class, it is
    within the size of the class's largest group.

    Args:
        digests: digest of each sample's group, or of its key if it has no group; type S16.
        owners: number of a sample, for each of its classes.
        classes: number of the class, likewise.
        shares: relative sizes of the splits.
        earlier: number of the split in which an earlier data set has each sample, or `NEW`.
    """
    import numpy as np

    if not len(digests):
        return digests, np.zeros(0, np.uint16)
    units, unit_of = np.unique(digests, return_inverse=True)
    # Two more classes: samples without a class, and all samples.
    without = int(classes.max(initial=-1)) + 1
    everything = without + 1
    samples = np.arange(len(digests))
    lone = np.setdiff1d(samples, owners)
    owners = np.concatenate([owners, lone, samples])
    more = np.repeat([without, everything], [len(lone), len(samples)])
    pairs = unit_of[owners] * (everything + 1) + np.concatenate([classes, more])
    pairs, counts = np.unique(pairs, return_counts=True)
    of_unit, of_class = np.divmod(pairs, everything + 1)
    totals = np.bincount(of_class, counts, everything + 1).astype(np.int64)
    first = np.flatnonzero(np.diff(of_unit, prepend=-1))
    last = np.append(first[1:], len(pairs))
    sizes = counts[last - 1]  # `everything` has the highest number, and is never the rarest
    rarest = np.minimum.reduceat(totals[of_class] * (everything + 1) + of_class, first)
    known = np.full(len(units), NEW)
    np.maximum.at(known, unit_of, earlier)
    order = np.lexsort((-sizes, rarest, known == NEW))  # then by digest, as `units` are sorted

    whole = sum(shares)
    scale = math.lcm(*((share / whole).denominator for share in shares))
    parts = [int(share / whole * scale) for share in shares]
    weight = math.isqrt(len(digests))
    seen = [0] * len(totals)
    got = [[0] * len(parts) for _ in seen]
    chosen = np.zeros(len(units), np.uint16)
    for chunk in np.array_split(order, 1 + len(order) // _CHUNK):
        columns = (of[chunk].tolist() for of in (first, last, rarest % len(totals), known))
        for unit, start, end, rare, best in zip(chunk.tolist(), *columns, strict=True):
            names, numbers = of_class[start:end].tolist(), counts[start:end].tolist()
            held = [got[name] for name in names]
            for name, number in zip(names, numbers, strict=True):
                seen[name] += number
            if best == NEW:
                total, needed = int(totals[rare]), numbers[names.index(rare)] * scale
                room = [
                    part * total - scale * has for part, has in zip(parts, got[rare], strict=True)
                ]
                due, had = sum([seen[name] for name in names]), map(sum, zip(*held, strict=True))
                scores = [
                    left * weight + total * (part * due - scale * has)
                    for left, part, has in zip(room, parts, had, strict=True)
                ]
                least = needed if max(room) >= needed else 1
                fit = [split for split, left in enumerate(room) if left >= least]
                best = max(fit, key=scores.__getitem__)
            chosen[unit] = best
            for have, number in zip(held, numbers, strict=True):
                have[best] += number
    return units, chosen
