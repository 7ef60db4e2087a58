"""TensorFlow Data Validation checks our shards by our `schema.pbtxt`.

`.ci/run` installs it in its own environment, so that its protobuf, pyarrow and Beam do not
replace ours, and names its Python in TFDV_PYTHON.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.pipelines import table
from tests.coco_command import committed, committed_by, manifest_of
from tests.drawn_sources import draw_coco

PYTHON = os.environ.get("TFDV_PYTHON", "")
VALIDATE = Path(__file__).parent / "tfdv" / "validate.py"
pytestmark = pytest.mark.thorough
by_tfdv = pytest.mark.skipif(not PYTHON, reason="TFDV_PYTHON names no Python; .ci/run installs one")


LAYOUTS = ("detection", "keras", "tfds")
PICTURES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures in every layout, and a table."""
    folder = tmp_path_factory.mktemp("tfdv")
    sources = draw_coco(folder, PICTURES)
    for layout in LAYOUTS:
        committed(sources, folder / layout, "--num_shards", 2, "--layout", layout)
    (folder / "t.csv").write_text("id,x,name\n1,0.5,a\n2,,b\n3,,\n")
    committed_by(table.run, folder / "table", "--table", folder / "t.csv")
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """TFDV's findings by output, all from one process, since it starts slowly."""
    outputs, schema = (*LAYOUTS, "table"), "schema.pbtxt"
    cases = {out: (f"{folder / out / schema}", f"{folder / out}/*.tfrec") for out in outputs}
    done = subprocess.run(
        [PYTHON, str(VALIDATE), json.dumps(cases)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@by_tfdv
@pytest.mark.parametrize("out", [*LAYOUTS, "table"])
def test_our_shards_have_no_anomaly(out: str, folder: Path, found: dict[str, Any]) -> None:
    """Missing cells of a table are not anomalies either."""
    manifest = manifest_of(folder / out)
    assert found[out] == {
        "features": len(manifest["features"]),
        "examples": manifest["splits"]["train"]["records"],
        "statistics": {},
        "anomalous": {"": 0},
    }
