"""Every input that fuzzing has kept is run again, by the same targets, without atheris."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.faults import fault_line
from tests.fuzz.target import require_fault_line
from tests.fuzz.targets import TARGETS
from transforms.images.check_images import Check, ImageInfo, check_image

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_kept_inputs_hold_the_property(name: str) -> None:
    inputs = TARGETS[name].inputs()
    assert len(inputs) >= 3
    for data in inputs:
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", ["jpeg", "png", "gif", "bmp"])
def test_tensorflow_decodes_what_the_decode_check_accepts(name: str) -> None:
    import tensorflow as tf

    accepted = 0
    for data in TARGETS[name].inputs():
        info = check_image(data, Check.DECODE, max_pixels=2**20)
        if isinstance(info, ImageInfo):
            *_, height_px, width_px, _ = tf.io.decode_image(data).shape
            assert (width_px, height_px) == (info.width_px, info.height_px), data
            accepted += 1
    assert accepted >= 3


@pytest.mark.parametrize(
    "error",
    [
        KeyError("images"),
        ValueError("E-ANN-JSON"),  # a code and nothing more
        RuntimeError(fault_line("E-ARG", "a", "b", "c")),
        RuntimeError("E-ANN-JSON a: b\n; c"),
        RuntimeError(fault_line("E-ANN-ORPHAN", "a", "b", "c") + "\u202e"),
        RuntimeError("Traceback: " + fault_line("E-ANN-JSON", "a", "b", "c")),
    ],
)
def test_a_broken_fault_line_is_found(error: Exception) -> None:
    require_fault_line(RuntimeError(fault_line("E-ANN-JSON", "a", "b", "c")), "E-ANN-")
    with pytest.raises((AssertionError, KeyError)):
        require_fault_line(error, "E-ANN-")


def test_an_input_that_takes_too_much_memory_is_found() -> None:
    program = "from tests.fuzz.one import bounded, peak_mib\nlimit = peak_mib() + 32\n"
    program += "run = bounded(lambda data: data * 2**20, limit)\nrun(b'ab')\n\nrun(bytes(64))"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert re.search(r"MemoryError: peak of \d+ MiB, the limit is \d+$", run.stderr.strip())
    assert 'File "<string>", line 6' in run.stderr  # and not for two megabytes
