"""Each sabotage fits the code it breaks; `make sabotage` checks that tests notice it."""

import pytest

from tests.sabotage.run import ROOT
from tests.sabotage.sabotages import SABOTAGES, Sabotage


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_its_text_occurs_once(sabotage: Sabotage) -> None:
    assert (ROOT / sabotage.file).read_text().count(sabotage.old) == 1
