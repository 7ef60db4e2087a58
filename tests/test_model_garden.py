"""Our shards compared with Model Garden's script and decoder, on the same photos.

`.ci/run` installs them in their own environment, so that their protobuf does not replace ours, and
names its Python in MODEL_GARDEN_PYTHON.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.coco_command import run_coco, shard_paths
from tests.conftest import TEST_DATA

PYTHON = os.environ.get("MODEL_GARDEN_PYTHON", "")
COMPARE = Path(__file__).parent / "model_garden" / "compare.py"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not PYTHON, reason="MODEL_GARDEN_PYTHON names no Python; .ci/run installs one"
    ),
]


CASES = [  # data, annotation files, features, number of images
    (
        "coco_val",
        ("captions", "person_keypoints", "instances"),
        "boxes,masks,polygons,keypoints,captions,license",
        5,
    ),
    ("coco_train", ("panoptic", "instances"), "boxes,masks,panoptic", 7),
]


@pytest.mark.parametrize(("data", "names", "features", "count"), CASES)
def test_records_equal_those_of_its_script(
    data: str, names: tuple[str, ...], features: str, count: int, tmp_path: Path
) -> None:
    images, annotations = (TEST_DATA / data / name for name in ("images", "annotations"))
    files = {f"--{name}": annotations / f"{name}.json" for name in names}
    pngs = ("--panoptic_images", annotations / "panoptic") if "panoptic" in names else ()
    run = run_coco(
        *("--images", images, "--annotations", *files.values(), *pngs),
        *("--features", features, "--output", tmp_path / "out"),
    )
    assert run.code == 0, run.err
    files.pop("--person_keypoints", None)  # the script does not write these
    given = [argument for pair in files.items() for argument in pair]
    shards = shard_paths(tmp_path / "out")
    command = [PYTHON, COMPARE, "--shards", *shards, "--images", images, "--masks", *given, *pngs]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout == f"{count} Examples compared, 0 differ\n"
