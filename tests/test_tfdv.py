"""TensorFlow Data Validation checks our shards, and changed ones, by our `schema.pbtxt`.

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
from beam_tfrec.schemas.tfrecord import frame_record
from tests.coco_command import committed, committed_by, examples, manifest_of
from tests.drawn_sources import draw_coco

PYTHON = os.environ.get("TFDV_PYTHON", "")
VALIDATE = Path(__file__).parent / "tfdv" / "validate.py"
pytestmark = pytest.mark.thorough
by_tfdv = pytest.mark.skipif(not PYTHON, reason="TFDV_PYTHON names no Python; .ci/run installs one")


def without_height(feature: Any) -> None:
    del feature["image/height"]


def two_widths(feature: Any) -> None:
    feature["image/width"].int64_list.value.append(5)


def areas_as_text(feature: Any) -> None:
    feature["image/object/area"].bytes_list.value.append(b"large")


def with_a_new_feature(feature: Any) -> None:
    feature["image/mine"].int64_list.value.append(5)


LAYOUTS = ("detection", "keras", "tfds")
FOREIGN = [  # change of Examples, feature that is found, part of its message
    (without_height, "image/height", "Column dropped"),
    (two_widths, "image/width", ""),
    (areas_as_text, "image/object/area", "Unexpected data type"),
    (with_a_new_feature, "image/mine", "New column"),
]
PICTURES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures in every layout, a table, and changed Examples of the first layout."""
    folder = tmp_path_factory.mktemp("tfdv")
    sources = draw_coco(folder, PICTURES)
    for layout in LAYOUTS:
        committed(sources, folder / layout, "--num_shards", 2, "--layout", layout)
    (folder / "t.csv").write_text("id,x,name\n1,0.5,a\n2,,b\n3,,\n")
    committed_by(table.run, folder / "table", "--table", folder / "t.csv")
    for damage, _, _ in FOREIGN:
        foreign = []
        for example in examples(folder / "detection"):
            damage(example.features.feature)
            foreign += frame_record([example.SerializeToString()])
        (folder / f"{damage.__name__}.records").write_bytes(b"".join(foreign))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """TFDV's findings by output or damage, all from one process, since it starts slowly."""
    outputs, schema = (*LAYOUTS, "table"), "schema.pbtxt"
    cases = {out: (f"{folder / out / schema}", f"{folder / out}/*.tfrec") for out in outputs}
    cases |= {
        damage.__name__: (cases["detection"][0], f"{folder / damage.__name__}.records")
        for damage, _, _ in FOREIGN
    }
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


@by_tfdv
@pytest.mark.parametrize(
    ("damage", "key", "what"), [(damage.__name__, *found) for damage, *found in FOREIGN]
)
def test_an_anomaly_is_found_in_changed_examples(
    damage: str, key: str, what: str, found: dict[str, Any]
) -> None:
    assert list(found[damage]["statistics"]) == [key]
    assert what in found[damage]["statistics"][key]
    assert sum(found[damage]["anomalous"].values()) == PICTURES
