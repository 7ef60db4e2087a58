"""TensorFlow Data Validation checks our shards by our `schema.pbtxt`.

`.ci/run` installs it in its own environment, so that its protobuf, pyarrow and Beam do not
replace ours, and names its Python in TFDV_PYTHON.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from beam_tfrec.pipelines import table
from tests.coco_command import committed, committed_by, manifest_of
from tests.drawn_sources import draw_coco

PYTHON = os.environ.get("TFDV_PYTHON", "")
VALIDATE = Path(__file__).parent / "tfdv" / "validate.py"
LAYOUTS = ("detection", "keras", "tfds")


@pytest.mark.thorough
@pytest.mark.skipif(not PYTHON, reason="TFDV_PYTHON names no Python; .ci/run installs one")
def test_our_shards_have_no_anomaly(tmp_path: Path) -> None:
    """Of pictures in every layout, and of a table with missing cells; TFDV starts slowly."""
    sources = draw_coco(tmp_path, 4)
    for layout in LAYOUTS:
        committed(sources, tmp_path / layout, "--num_shards", 2, "--layout", layout)
    (tmp_path / "t.csv").write_text("id,x,name\n1,0.5,a\n2,,b\n3,,\n")
    committed_by(table.run, tmp_path / "table", "--table", tmp_path / "t.csv")
    outs = [tmp_path / name for name in (*LAYOUTS, "table")]
    cases = {out.name: (f"{out}/schema.pbtxt", f"{out}/*.tfrec") for out in outs}
    done = subprocess.run(
        [PYTHON, str(VALIDATE), json.dumps(cases)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    manifests = {out.name: manifest_of(out) for out in outs}
    assert json.loads(done.stdout.splitlines()[-1]) == {
        name: {
            "features": len(manifest["features"]),
            "examples": manifest["splits"]["train"]["records"],
            "statistics": {},
            "anomalous": {"": 0},
        }
        for name, manifest in manifests.items()
    }
