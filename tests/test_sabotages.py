"""Sabotages fit the code that they are to harm; that tests notice them, `make sabotage` shows."""

import pytest

from tests.sabotage.run import ROOT
from tests.sabotage.sabotages import SABOTAGES, Sabotage


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_its_text_is_there_once(sabotage: Sabotage) -> None:
    assert (ROOT / sabotage.file).read_text().count(sabotage.old) == 1
