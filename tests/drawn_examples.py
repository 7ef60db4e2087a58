"""How many examples hypothesis draws for a test: a share of them where the suite runs again.

`.ci/run` runs the tests on two Pythons, with all examples on one of them.
"""

import os
from typing import Any

from hypothesis import settings

SHARE = "BEAM_TFREC_EXAMPLES_PERCENT"
"""Environment variable: what part of its examples a test draws, at least `_LEAST`; 100 if unset."""

_LEAST = 20


def draw(examples: int, **more: Any) -> settings:
    """Return the settings of a test that draws so many examples, in any time.

    Args:
        examples: as many as the whole test has.
        more: other settings of hypothesis.
    """
    return settings(max_examples=share_of(examples), deadline=None, **more)


def share_of(examples: int) -> int:
    """Return how many of a test's examples are to be drawn now."""
    percent = int(os.environ.get(SHARE, "100"))
    return max(min(examples, _LEAST), examples * percent // 100)
