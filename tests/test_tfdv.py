"""TensorFlow Data Validation with our `schema.pbtxt` over our shards, and over what is foreign.

`.ci/run` installs it in an environment of its own and names its Python in TFDV_PYTHON: its
protobuf, pyarrow and Beam must not touch ours.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import table
from schemas.tfrecord import frame_record
from tests.coco_command import MakeCoco, committed, examples
from tests.pipeline_command import committed_by

PYTHON = os.environ.get("TFDV_PYTHON", "")
VALIDATE = Path(__file__).parent / "tfdv" / "validate.py"
LOCK = Path(__file__).parent / "tfdv" / "requirements.lock"

by_tfdv = pytest.mark.skipif(not PYTHON, reason="TFDV_PYTHON names no Python; .ci/run installs one")


def validated(out: Path, pattern: str = "*.tfrec") -> dict[str, Any]:
    """Return what TFDV finds in files of an output by its schema."""
    done = subprocess.run(
        [PYTHON, str(VALIDATE), str(out / "schema.pbtxt"), str(out / pattern)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_its_lock_has_hashes_and_names_no_host() -> None:
    text = LOCK.read_text()
    assert "tensorflow-data-validation==" in text
    assert "://" not in text


@by_tfdv
@pytest.mark.parametrize("layout", ["detection", "keras", "tfds"])
def test_no_anomaly_is_in_our_shards(layout: str, make_coco: MakeCoco, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = committed(make_coco(9), out, "--num_shards", 2, "--layout", layout)
    assert validated(out) == {
        "features": len(manifest["features"]),
        "examples": manifest["splits"]["train"]["records"],
        "statistics": {},
        "anomalous": {"": 0},
    }


@by_tfdv
def test_missing_cells_of_a_table_are_no_anomaly(tmp_path: Path) -> None:
    source, out = tmp_path / "t.csv", tmp_path / "out"
    source.write_text("id,x,name\n1,0.5,a\n2,,b\n3,,\n")
    committed_by(table.run, out, "--table", source)
    found = validated(out)
    assert (found["examples"], found["statistics"], found["anomalous"]) == (3, {}, {"": 0})


def without_height(feature: Any) -> None:
    del feature["image/height"]


def two_widths(feature: Any) -> None:
    feature["image/width"].int64_list.value.append(5)


def areas_as_text(feature: Any) -> None:
    feature["image/object/area"].bytes_list.value.append(b"large")


def with_a_stranger(feature: Any) -> None:
    feature["image/mine"].int64_list.value.append(5)


@by_tfdv
@pytest.mark.parametrize(
    ("damage", "key", "what"),
    [
        (without_height, "image/height", "Column dropped"),
        (two_widths, "image/width", ""),
        (areas_as_text, "image/object/area", "Unexpected data type"),
        (with_a_stranger, "image/mine", "New column"),
    ],
)
def test_an_anomaly_is_found_in_foreign_examples(
    damage: Callable[[Any], None], key: str, what: str, make_coco: MakeCoco, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    committed(make_coco(4), out, "--num_shards", 1)
    foreign = []
    for example in examples(out):
        damage(example.features.feature)
        foreign += frame_record([example.SerializeToString()])
    (out / "foreign.records").write_bytes(b"".join(foreign))

    found = validated(out, "foreign.records")

    assert list(found["statistics"]) == [key]
    assert what in found["statistics"][key]
    assert sum(found["anomalous"].values()) == 4
