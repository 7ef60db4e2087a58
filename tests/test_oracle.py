"""Every source and layout makes the bytes and the verdicts that the oracle recorded."""

from pathlib import Path

import pytest

from tests import oracle


def is_variant(name: str) -> bool:
    """Return whether another case covers the source and layout, so that `make test` needs it not.

    The name of a variant goes on after a comma.
    """
    return "," in name and name != "odd images, header check"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if is_variant(name) else ())
        for name in oracle.CASES
    ],
)
def test_bytes_are_as_recorded(name: str, oracle_sources: Path, tmp_path: Path) -> None:
    case, recorded = oracle.CASES[name], oracle.golden()
    if case.codecs and oracle.codecs() != recorded["codecs"]:
        pytest.skip(f"recorded with {recorded['codecs']}, here are {oracle.codecs()}")
    assert oracle.write_case(case, oracle_sources, tmp_path / "out") == recorded[name]
