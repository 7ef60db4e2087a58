"""Every source and layout makes the bytes and the verdicts that the oracle recorded."""

from pathlib import Path

import pytest

from tests import oracle
from tests.conftest import thorough

# After a comma, the case is a variant: another one covers its source and layout.
VARIANTS = {name for name in oracle.CASES if "," in name} - {"odd images, header check"}


@pytest.mark.parametrize(
    "name", [thorough(name) if name in VARIANTS else name for name in oracle.CASES]
)
def test_bytes_are_as_recorded(name: str, oracle_sources: Path, tmp_path: Path) -> None:
    case, recorded = oracle.CASES[name], oracle.golden()
    if case.codecs and oracle.codecs() != recorded["codecs"]:
        pytest.skip(f"recorded with {recorded['codecs']}, here are {oracle.codecs()}")
    assert oracle.write_case(case, oracle_sources, tmp_path / "out") == recorded[name]
