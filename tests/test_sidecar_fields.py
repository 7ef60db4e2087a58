"""Fields of JSON files next to images become features."""

from pathlib import Path

import pytest

from pipelines import sidecar
from tests.coco_command import rejected_of, shard_paths
from tests.pipeline_command import committed_by, run_pipeline
from tests.side_folders import sources, write_side_files

FIELDS = ("--fields", "a.b=int64,score=float", "tags=bytes[],who=bytes")
FULL = {"a": {"b": 7}, "score": 1, "tags": ["x", "y"], "who": "Zoë", "more": [{}]}


def test_fields_are_features_with_the_defaults_of_readers(tmp_path: Path) -> None:
    import tensorflow as tf

    folders = write_side_files(tmp_path, {"1": FULL, "2": {"tags": None}, "3": {"a": 5, "who": ""}})
    manifest = committed_by(sidecar.run, tmp_path / "out", *sources(folders), *FIELDS)
    features = {
        "image/filename": tf.io.FixedLenFeature([], tf.string),
        "a.b": tf.io.FixedLenFeature([], tf.int64, -1),
        "score": tf.io.FixedLenFeature([], tf.float32, 0.5),
        "tags": tf.io.RaggedFeature(tf.string),
        "who": tf.io.FixedLenFeature([], tf.string, "nobody"),
    }
    got = {}
    for record in tf.data.TFRecordDataset([str(path) for path in shard_paths(tmp_path / "out")]):
        row = {
            key: one.numpy() for key, one in tf.io.parse_single_example(record, features).items()
        }
        name = row.pop("image/filename").decode()
        got[name] = {**row, "tags": row["tags"].tolist()}
    assert got == {
        "1.jpg": {"a.b": 7, "score": 1.0, "tags": [b"x", b"y"], "who": "Zoë".encode()},
        "2.jpg": {"a.b": -1, "score": 0.5, "tags": [], "who": b"nobody"},
        "3.jpg": {"a.b": -1, "score": 0.5, "tags": [], "who": b""},
    }
    optional = {f["key"] for f in manifest["features"] if f.get("optional")}
    assert optional == {"a.b", "score", "who"}
    assert manifest["layout"] == "table"


@pytest.mark.parametrize(
    ("content", "code", "detail"),
    [
        ({"a": {"b": 1.5}}, "E-ROW-TYPE", "field 'a.b' is int64 and holds 1.5, no whole number"),
        ([1], "E-ANN-FILE", "Expected `object`, got `array`"),
    ],
)
def test_values_that_do_not_fit_are_rejects(
    content: object, code: str, detail: str, tmp_path: Path
) -> None:
    folders = write_side_files(tmp_path, {"1": FULL, "2": content})
    flags = [*sources(folders), *FIELDS, "--max_rejected", 1]
    committed_by(sidecar.run, tmp_path / "out", *flags)
    (reject,) = rejected_of(tmp_path / "out")
    assert (reject["code"], reject["key"], reject["detail"]) == (code, "2.jpg", f"2.json: {detail}")


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--format", "flat"], "fields must come with format flat, got format flat and fields"),
        (["--fields", "a=int64", "--features", "boxes"], "features must be of objects, got boxes"),
        (["--fields", "a..b=int64"], "fields must be keys with single dots between, got 'a..b';"),
    ],
)
def test_wrong_flags(flags: list[object], fault: str, tmp_path: Path) -> None:
    paths = ["--images", "x", "--annotations", "y", "--output", tmp_path / "out"]
    ended = run_pipeline(sidecar.run, *paths, *flags)
    assert ended.code == 2
    assert ended.fault.startswith(f"E-ARG command line: {fault}")
