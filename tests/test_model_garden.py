"""Our shards against Model Garden's script, decoder and RetinaNet, on the same photos.

`.ci/run` installs them in their own environment, so that their protobuf does not replace ours, and
names its Python in MODEL_GARDEN_PYTHON.
"""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

from beam_tfrec.pipelines import coco
from tests.coco_command import committed_by, examples, run_coco, shard_paths, value
from tests.conftest import TEST_DATA
from tests.drawn_sources import draw_coco
from tests.test_docs import block_of

PYTHON = os.environ.get("MODEL_GARDEN_PYTHON", "")
COMPARE, CONFIGURE = (
    Path(__file__).parent / "model_garden" / f"{name}.py" for name in ("compare", "configure")
)

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


def test_the_configuration_of_the_document_trains(tmp_path: Path) -> None:
    images, annotations = draw_coco(tmp_path, 8)
    files = ("--annotations", f"train={annotations}", f"val={annotations}")
    committed_by(coco.run, tmp_path / "out", "--images", f"train={images}", f"val={images}", *files)
    text = block_of("docs/start-model-garden.md", "train_data", "yaml")
    assert text.count("gs://bucket/coco-tfrec") == text.count("64") == 2
    config = tmp_path / "config.yaml"
    config.write_text(text.replace("gs://bucket/coco-tfrec", f"{tmp_path}/out").replace("64", "4"))
    done = subprocess.run([PYTHON, CONFIGURE, config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    got = json.loads(done.stdout)
    assert math.isfinite(got["loss"])
    records = examples(tmp_path / "out", "val")[:4]
    assert got["classes"] == [value(record, "image/object/class/label") for record in records]
