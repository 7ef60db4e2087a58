"""Every input that fuzzing has kept is run again, by the same targets, without atheris."""

import pytest

from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_targets_pass_on_seeds_and_kept_inputs(name: str) -> None:
    inputs = TARGETS[name].inputs()
    assert len(inputs) >= 3
    for data in inputs:
        TARGETS[name].run(data)
