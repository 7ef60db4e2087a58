"""Tables to Examples and SequenceExamples, end to end, and refused flags."""

import csv
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from beam_tfrec.pipelines.table import TableConfig, run
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import FeatureSpec, Kind, parse_sequence_spec, parse_spec
from beam_tfrec.schemas.fields import fields_of_row
from beam_tfrec.schemas.layouts.table import TableLayout
from beam_tfrec.schemas.manifest import Manifest, read_manifest
from beam_tfrec.schemas.samples import Sample
from tests.conftest import jpeg_bytes


def convert(output: Path, *argv: object) -> Manifest:
    run([*map(str, argv), "--output", str(output)])
    return read_manifest((output / "manifest.json").read_bytes(), "manifest.json")


def records(output: Path, split: str = "train") -> list[bytes]:
    import tensorflow as tf

    files = sorted(str(path) for path in output.glob(f"{split}-*.tfrec"))
    return [record.numpy() for record in tf.data.TFRecordDataset(files)]


def spec_of(output: Path) -> FeatureSpec:
    manifest = read_manifest((output / "manifest.json").read_bytes(), "manifest.json")
    return FeatureSpec("table", tuple(manifest.features))


def parsed(output: Path, split: str = "train", spec: Any = None) -> dict[str, list]:
    """Return every feature's values, parsed by TensorFlow; by default with the manifest's spec."""
    import tensorflow as tf

    spec = spec or parse_spec(spec_of(output), ragged=True)
    found = tf.io.parse_example(records(output, split), spec)
    return {
        key: value.to_list() if hasattr(value, "to_list") else value.numpy().tolist()
        for key, value in found.items()
    }


def fault(output: Path, *argv: object) -> str:
    with pytest.raises((RuntimeError, ValueError)) as raised:
        convert(output, *argv)
    text = str(raised.value)
    return text[text.find("E-") :] if "E-" in text else text


def write_json(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_missing_cells_become_the_tutorials_defaults(tmp_path: Path) -> None:
    import tensorflow as tf

    description = {
        "feature0": tf.io.FixedLenFeature([], tf.int64, default_value=0),
        "feature1": tf.io.FixedLenFeature([], tf.int64, default_value=0),
        "feature2": tf.io.FixedLenFeature([], tf.string, default_value=""),
        "feature3": tf.io.FixedLenFeature([], tf.float32, default_value=0.0),
    }
    whole = {"feature0": True, "feature1": 4, "feature2": "goat", "feature3": 0.5}
    rows = [whole, *({**whole, name: None} for name in whole), {"feature1": 1}]
    table = write_json(tmp_path / "t.jsonl", rows)
    manifest = convert(tmp_path / "out", "--table", table, "--order", "input")
    assert parsed(tmp_path / "out", spec=description) == {
        "feature0": [1, 0, 1, 1, 1, 0],
        "feature1": [4, 4, 0, 4, 4, 1],
        "feature2": [b"goat", b"goat", b"goat", b"", b"goat", b""],
        "feature3": [0.5, 0.5, 0.5, 0.5, 0, 0],
    }
    assert all(feature.optional for feature in manifest.features)


ROWS: list[dict[str, Any]] = [
    {"id": row, "name": f"n, {row}" if row % 4 else None, "score": row / 8 if row % 3 else None}
    for row in range(200)
]


def write_csv(path: Path, delimiter: str) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([[*ROWS[0]], *(row.values() for row in ROWS)])
    return path


@pytest.mark.thorough
def test_every_format_gives_the_same_records(tmp_path: Path) -> None:
    parquet = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), parquet, row_group_size=64)
    tables = [
        write_json(tmp_path / "t.jsonl", ROWS),
        write_csv(tmp_path / "t.csv", ","),
        write_csv(tmp_path / "t.tsv", "\t"),
        parquet,
    ]
    made = [convert(tmp_path / f"out{n}", "--table", path) for n, path in enumerate(tables)]

    assert len({tuple(shard.sha256 for shard in manifest.shards) for manifest in made}) == 1
    features = [(f.key, f.kind.value, f.optional) for f in made[0].features]
    assert features == [("id", "int64", False), ("name", "bytes", True), ("score", "float", True)]
    found = parsed(tmp_path / "out0")
    assert sorted(zip(found["id"], found["name"], found["score"], strict=True)) == [
        (row["id"], (row["name"] or "").encode(), row["score"] or 0.0) for row in ROWS
    ]


@pytest.mark.thorough
def test_a_table_without_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t.csv").write_text("a,b\n")
    argv = ("--table", tmp_path / "t.csv")
    empty = f"E-SET-EMPTY split train: no samples in {tmp_path}/t.csv; check them"
    assert fault(tmp_path / "out", *argv).startswith(empty)
    nameless = "E-ARG layout table: types must name the columns when no row has any, got none; give"
    assert fault(tmp_path / "out", *argv, "--allow_empty").startswith(nameless)
    manifest = convert(tmp_path / "out", *argv, "--allow_empty", "--types", "a=int64,b=bytes?")
    assert [(f.key, f.kind.value, f.optional) for f in manifest.features] == [
        ("a", "int64", False),
        ("b", "bytes", True),
    ]
    assert manifest.splits["train"].records == 0 and manifest.shards == []
    (tmp_path / "t.csv").write_text("a,b\n1,2,\n")
    assert fault(tmp_path / "out2", *argv, "--max_rejected", 1).startswith(nameless)
    assert "E-ROW-CSV sample (key 0): " in caplog.text


@pytest.mark.thorough
def test_a_folder_and_a_glob(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "more").mkdir(parents=True)
    (data / "b.csv").write_text("a,b\n1,x\n")
    (data / "more" / "a.jsonl").write_text('{"a": 2, "c": 0.5}\n{"a": 3}\n')
    (data / "readme.txt").write_text("about")
    (data / "more" / "._a.jsonl").write_bytes(b"\0\5\26\7")  # as macOS leaves them
    folder = convert(tmp_path / "folder", "--table", data, "--order", "input")
    glob = convert(tmp_path / "glob", "--table", data / "*.csv")
    assert folder.splits["train"].skipped == {"not_called_a_table": 2}
    assert glob.splits["train"].skipped == {}
    assert parsed(tmp_path / "folder") == {"a": [1, 2, 3], "b": [b"x", b"", b""], "c": [0, 0.5, 0]}
    assert {f.key: f.optional for f in folder.features} == {"a": False, "b": True, "c": True}
    assert parsed(tmp_path / "glob") == {"a": [1], "b": [b"x"]}


@pytest.mark.parametrize(
    ("name", "pattern", "target"),
    [
        ("b.csv", "", "nowhere.csv"),
        (os.fsdecode(b"\xff.csv"), "*.csv", "nowhere.csv"),
        (os.fsdecode(b"\xff"), "", "."),  # a folder that cannot be listed
        (os.fsdecode(b"\xff"), "**/*.csv", "."),
    ],
)
def test_a_table_that_cannot_be_read_is_not_skipped(
    name: str, pattern: str, target: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text("a\n1\n")
    (data / name).symlink_to(target)
    line = fault(tmp_path / "out", "--table", data / pattern)
    assert line.startswith("E-TAB-FORMAT ") and "; repair it, or remove it" in line


@pytest.mark.thorough
def test_since_refuses_data_sets_with_other_keys(tmp_path: Path) -> None:
    """Row 0 of `a.csv` has key `0`, in a folder `a.csv:0`: it would be written twice."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text("k\n1\n2\n")
    alone = convert(tmp_path / "alone", "--table", folder / "a.csv")
    line = fault(tmp_path / "next", "--table", folder, "--since", tmp_path / "alone")
    assert line.startswith(
        f"E-ARG {tmp_path}/alone: its samples have other splits or keys: as given; this run's are"
        " keys file:row; give --since data sets of the same --split_by, --splits, seed and keys"
    )
    two = convert(tmp_path / "two", "--table", folder / "a.csv", folder / "b.csv")
    later = convert(tmp_path / "next", "--table", folder, "--since", tmp_path / "two")
    assert (later.splits["train"].earlier, later.splits["train"].records) == (4, 0)
    assert [each.plan.options.get("keys") for each in (alone, two)] == [None, "file:row"]
    mixed = TableConfig(tables={"train": ["in/"], "val": ["in/a.csv"]}, output="out")
    assert mixed.options()["keys"] == "train=file:row val=row"


@pytest.mark.thorough
@pytest.mark.parametrize("other", ["README.md", "broken.csv"])
def test_rejects_without_a_split_are_counted_in_train(other: str, tmp_path: Path) -> None:
    """Even if `train` has no rows."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("n,part\n1,val\n2,test\n")
    (folder / other).write_text("n,part\n3\n")
    flags = ("--table", folder, "--split_by", "part", "--max_rejected", 1)
    splits = convert(tmp_path / "out", *flags).splits
    assert {name: (split.listed, split.records) for name, split in splits.items()} == {
        "test": (1, 1),
        "train": (1, 0),
        "val": (1, 1),
    }


def test_given_types(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("zip,n,tag\n12345,1,a\n54321,2,\n99999,x,b\n")
    argv = ["--table", tmp_path / "t.csv", "--types", "zip=bytes,n=int64", "tag=bytes[]"]
    manifest = convert(tmp_path / "out", *argv, "--max_rejected", 1, "--order", "input")
    assert parsed(tmp_path / "out") == {
        "n": [1, 2],
        "tag": [[b"a"], []],
        "zip": [b"12345", b"54321"],
    }
    assert manifest.splits["train"].rejected == {"E-ROW-TYPE": 1}
    assert manifest.plan.options["types"] == "n=int64,tag=bytes[],zip=bytes"


ONCE = "label_column must name each column once, and none of types or sequence"
FILES = "tables of train must be .csv, .tsv, .jsonl, .parquet files,"
REFUSED = [
    ("a.csv b*.csv", f"{FILES} or one folder or glob, got 'b*.csv' among 2: "),
    ("x/a.csv y/a.csv", "tables of train must have different names, since keys of rows begin"),
    *(
        (f"a.csv {given}", "check and image options need --image_column: add it, or omit them")
        for given in ("--check decode", "--resize 100", "--orientation upright", "--color gray")
    ),
    ("a.csv --since b", "since must come with key_column where tables are"),
    ("a.csv --image_root x", "image_root must come with image_column of names, got x: name such a"),
    ("a.csv --objects_column o", "objects_column must come with image_column of Parquet cells, "),
    ("a.csv --max_dropped 1", "max_dropped must come with objects_column, got 1: name such a col"),
    ("a.csv --image_column f --image_root val=x", "image_root must name splits of --table, got ['"),
    ("a.csv folder", f"{FILES} or one folder or glob, got 'folder' among 2: "),
    ("rows.csv.gz", "tables of train must be files that end in .csv, .tsv, .jsonl, .parquet, got"),
    ("a.csv --types a", "types must be COLUMN=TYPE, each column once, got 'a': give such as age="),
    ("a.csv --label_file x", "label_file must come with label_column, got x: name such a column"),
    ("a.csv --first_label 1", "first_label must come with label_column, got 1: name such a column"),
    ("train=a.csv val=b.csv --split_by part", "split_by divides one source, got train and val: g"),
    ("a.csv --sequence a a", f"{ONCE}, got 'a': remove one mention"),
    ("a.csv --sequence a --label_column a", f"{ONCE}, got 'a': remove one mention"),
    (
        "a.csv --sequence a --types b=int64[][]",
        "types may be lists of lists only for --sequence, got int64[][] of 'b': add it there, or"
        " give b=int64[]",
    ),
]


@pytest.mark.parametrize(("argv", "message"), REFUSED)
def test_flags_that_do_not_fit_together(argv: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        run.configure(["--table", *argv.split(), "--output", "out"])


def test_programs_must_give_lists_of_tables() -> None:
    with pytest.raises(ValueError, match=r"^tables of train must be a list of paths, got 'a.csv'"):
        TableConfig(tables={"train": "a.csv"}, output="out")


CLIPS: list[dict[str, Any]] = [
    {"id": 0, "tags": ["a"], "tokens": [5, 300, -1], "boxes": [[0.5, 1.5], [], [2.5]]},
    {"id": 1, "tags": [], "tokens": [7], "boxes": None},
    {"id": 2, "tags": ["b", "c"], "tokens": None, "boxes": [[3.5]]},
    {"id": 3, "tags": None, "tokens": [], "boxes": []},
]


def plain(tensor: Any) -> Any:
    if hasattr(tensor, "to_list"):
        return tensor.to_list()
    value = tensor.numpy()
    return value if isinstance(value, bytes) else value.tolist()


def parsed_singly(output: Path) -> list[dict[str, Any]]:
    import tensorflow as tf

    given = parse_sequence_spec(spec_of(output), ragged=True)
    found = [tf.io.parse_single_sequence_example(record, *given) for record in records(output)]
    return [
        {key: plain(value) for key, value in {**context, **steps}.items()}
        for context, steps in found
    ]


def test_rows_become_sequence_examples(tmp_path: Path) -> None:
    import tensorflow as tf

    table = write_json(tmp_path / "t.jsonl", CLIPS)
    flags = ("--sequence", "tokens,boxes", "--order", "input")
    manifest = convert(tmp_path / "out", "--table", table, *flags)
    assert manifest.layout == "sequence"
    assert manifest.plan.options["sequence"] == "boxes,tokens"
    assert {f.key: (f.kind.value, f.repeated, f.per_step) for f in manifest.features} == {
        "boxes": ("float", True, True),
        "id": ("int64", False, False),
        "tags": ("bytes", True, False),
        "tokens": ("int64", False, True),
    }
    assert parsed_singly(tmp_path / "out") == [
        {
            "id": row["id"],
            "tags": [tag.encode() for tag in row["tags"] or []],
            "tokens": row["tokens"] or [],
            "boxes": row["boxes"] or [],
        }
        for row in CLIPS
    ]
    given = parse_sequence_spec(spec_of(tmp_path / "out"), ragged=True)
    context, steps, lengths = tf.io.parse_sequence_example(records(tmp_path / "out"), *given)
    assert plain(context["id"]) == [0, 1, 2, 3]
    assert plain(context["tags"]) == [[b"a"], [], [b"b", b"c"], []]
    assert plain(steps["tokens"]) == [[5, 300, -1], [7, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert plain(lengths["tokens"]) == [3, 1, 0, 0]
    assert plain(steps["boxes"]) == [[[0.5, 1.5], [], [2.5]], [], [[3.5]], []]


def test_frames_with_an_image_and_a_class_as_context(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.jpg").write_bytes(jpeg_bytes())
    frames = [[jpeg_bytes(color=color) for color in range(count)] for count in (3, 0, 1)]
    rows = [{"image": "0.jpg", "kind": "cat", "frames": each} for each in frames]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    argv = ["--image_column", "image", "--label_column", "kind", "--sequence", "frames"]
    argv += ["--image_root", tmp_path / "photos"]
    table = ["--table", tmp_path / "t.parquet", "--order", "input"]
    convert(tmp_path / "out", *table, *argv)
    found = parsed_singly(tmp_path / "out")
    assert [row["frames"] for row in found] == frames
    assert {row["image/encoded"] for row in found} == {jpeg_bytes()}
    assert (found[0]["image/class/label"], found[0]["image/class/text"]) == (0, b"cat")


def test_the_size_of_a_record_is_estimated() -> None:
    tokens = [*range(100, 1100)]
    layout = TableLayout(sequence_columns=("tokens",)).resolved(["int64[] tokens"])
    fields, payload = fields_of_row({"tokens": tokens}, ("tokens",))
    sample = Sample("train", "0", 0, (), fields, payload=payload)
    record = encode_example({}, {"tokens": (Kind.INT64, [[token] for token in tokens])})
    assert len(record) == pytest.approx(layout.record_bytes(sample), rel=0.15)
