"""Every input that fuzzing has kept is run again, by the same targets, without atheris."""

import pytest

from beam_tfrec.schemas.fields import ImageInfo
from beam_tfrec.transforms.images.check_images import Check
from tests.fuzz.targets import TARGETS
from tests.small_images import verdict


@pytest.mark.parametrize("name", TARGETS)
def test_targets_pass_on_seeds_and_kept_inputs(name: str) -> None:
    inputs = TARGETS[name].inputs()
    assert len(inputs) >= 3
    for data in inputs:
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", ["jpeg", "png", "gif", "bmp"])
def test_tensorflow_decodes_what_the_decode_check_accepts(name: str) -> None:
    import tensorflow as tf

    accepted = 0
    for data in TARGETS[name].inputs():
        info = verdict(data)
        is_small = isinstance(info, ImageInfo) and info.width_px * info.height_px < 2**20
        if is_small and verdict(data, Check.DECODE) == info:
            *_, height_px, width_px, _ = tf.io.decode_image(data).shape
            assert (width_px, height_px) == (info.width_px, info.height_px), data
            accepted += 1
    assert accepted >= 3
