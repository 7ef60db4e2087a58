"""The number of drawn examples, whole and as a share."""

import pytest

from tests.drawn_examples import SHARE, share_of


@pytest.mark.parametrize(
    ("percent", "examples", "drawn"),
    [(None, 5000, 5000), ("100", 7, 7), ("10", 5000, 500), ("10", 60, 20), ("10", 5, 5)],
)
def test_a_share_is_drawn(
    percent: str | None, examples: int, drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHARE, raising=False)
    if percent is not None:
        monkeypatch.setenv(SHARE, percent)
    assert share_of(examples) == drawn
