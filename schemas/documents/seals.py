"""Seals: how a file that anyone may edit is still known as one that a run has written.

`README.md` and `croissant.json` have names that users give files of their own. Those that we write
hold a digest of their own text; what has none, or has been edited since, is the user's.
"""

import hashlib
import re

BLANK_SEAL = f"beam-tfrec-sha256:{'0' * 64}"
"""What a text holds once, before anything that comes from the data, where its seal will stand."""

_SEAL = re.compile(rb"beam-tfrec-sha256:([0-9a-f]{64})")


def sealed(text: str) -> str:
    """Return a text with its seal in the place of `BLANK_SEAL`.

    >>> is_sealed(sealed(f"<!-- {BLANK_SEAL} -->").encode())
    True
    """
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text.replace(BLANK_SEAL, BLANK_SEAL.replace("0" * 64, digest), 1)


def is_sealed(data: bytes) -> bool:
    """Return whether a file is as a run of ours has written it, whichever run that was."""
    found = _SEAL.search(data)
    if found is None:
        return False
    blank = data[: found.start(1)] + b"0" * 64 + data[found.end(1) :]
    return hashlib.sha256(blank).hexdigest().encode() == found[1]
