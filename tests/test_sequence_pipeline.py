"""Tables to SequenceExamples, end to end."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.table import COMMAND
from schemas.example import encode_sequence_example
from schemas.features import FeatureSpec, Kind, RepeatedAs, parse_sequence_spec
from schemas.fields import fields_of_row
from schemas.layouts.table import TableLayout
from schemas.manifest import read_manifest
from schemas.samples import Sample
from tests.conftest import jpeg_bytes
from tests.test_table_pipeline import convert, fault, records, write_json

ROWS: list[dict[str, Any]] = [
    {"id": 0, "tags": ["a"], "tokens": [5, 300, -1], "boxes": [[0.5, 1.5], [], [2.5]]},
    {"id": 1, "tags": [], "tokens": [7], "boxes": None},
    {"id": 2, "tags": ["b", "c"], "tokens": None, "boxes": [[3.5]]},
    {"id": 3, "tags": None, "tokens": [], "boxes": []},
]
ARGV = ["--sequence", "tokens,boxes", "--order", "input"]


def spec_of(output: Path) -> FeatureSpec:
    """Return what the manifest says of the records."""
    manifest = read_manifest((output / "manifest.json").read_bytes(), "manifest.json")
    return FeatureSpec("table", tuple(manifest.features))


def plain(tensor: Any) -> Any:
    if hasattr(tensor, "to_list"):
        return tensor.to_list()
    value = tensor.numpy()
    return value if isinstance(value, bytes) else value.tolist()


def parsed_singly(output: Path) -> list[dict[str, Any]]:
    import tensorflow as tf

    given = parse_sequence_spec(spec_of(output), RepeatedAs.RAGGED)
    found = [tf.io.parse_single_sequence_example(record, *given) for record in records(output)]
    return [
        {key: plain(value) for key, value in {**context, **steps}.items()}
        for context, steps in found
    ]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_become_sequence_examples(tmp_path: Path, ending: str) -> None:
    import pyarrow
    import pyarrow.parquet
    import tensorflow as tf

    table = tmp_path / f"t.{ending}"
    if ending == "jsonl":
        write_json(table, ROWS)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), table)
    manifest = convert(tmp_path / "out", "--table", table, *ARGV)

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
        for row in ROWS
    ]
    given = parse_sequence_spec(spec_of(tmp_path / "out"), RepeatedAs.RAGGED)
    context, steps, lengths = tf.io.parse_sequence_example(records(tmp_path / "out"), *given)
    assert plain(context["id"]) == [0, 1, 2, 3]
    assert plain(context["tags"]) == [[b"a"], [], [b"b", b"c"], []]
    assert plain(steps["tokens"]) == [[5, 300, -1], [7, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert plain(lengths["tokens"]) == [3, 1, 0, 0]
    assert plain(steps["boxes"]) == [[[0.5, 1.5], [], [2.5]], [], [[3.5]], []]


def test_frames_with_an_image_and_a_class_as_context(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

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


def test_steps_that_cannot_be_written_are_rejected(tmp_path: Path) -> None:
    rows = [{"a": [1]}, {"a": [1, None]}, {"a": [[None]]}, {"a": [[[1]]]}, {"a": [{"b": 1}]}]
    table = write_json(tmp_path / "t.jsonl", rows)
    manifest = convert(
        tmp_path / "out", "--table", table, "--sequence", "a", "--max_rejected", len(rows) - 1
    )
    lines = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()

    assert manifest.splits["train"].rejected == {"E-ROW-TYPE": 4}
    assert [json.loads(line)["detail"] for line in lines] == [
        "t.jsonl line 2: column 'a' holds a list that holds null",
        "t.jsonl line 3: column 'a' holds a list that holds null",
        "t.jsonl line 4: column 'a' holds a list of lists",
        "t.jsonl line 5: column 'a' holds a value of the type dict",
    ]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            [{"a": 1, "b": [1]}],
            "types, label_column and sequence must name columns, got 'c'; give one of a, b",
        ),
        (
            [{"b": [1], "c": 1.5}],
            "sequence must name columns of lists, got 'c' of float; leave it out, or give"
            " --types c=float[] for sequences of one step",
        ),
    ],
)
def test_columns_that_are_no_sequences_stop_the_run(
    tmp_path: Path, rows: list[dict[str, Any]], line: str
) -> None:
    table = write_json(tmp_path / "t.jsonl", rows)

    found = fault(tmp_path / "out", "--table", table, "--sequence", "c")
    assert found.startswith(f"E-ARG layout sequence: {line}")


REFUSED = [
    (
        ["--sequence", "a", "a"],
        "label_column must name each column once, and none of types or sequence, got 'a': leave it"
        " out of one",
    ),
    (
        ["--sequence", "a", "--types", "b=int64[][]"],
        "types must be of lists of lists for columns of sequence alone, got int64[][] of 'b':"
        " give such as b=int64[], or name it there",
    ),
]


@pytest.mark.parametrize(("argv", "message"), REFUSED)
def test_flags_that_do_not_fit_together(argv: list[str], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        COMMAND.configure(["--table", "t.jsonl", *argv, "--output", "out"])

    assert str(raised.value) == message


def test_a_shard_s_size_is_foreseen() -> None:
    """So that shards of sequences are about as large as `--shard_size` asks for."""
    tokens = [*range(100, 1100)]
    layout = TableLayout(sequence_columns=("tokens",)).resolved(["int64[] tokens"])
    fields, payload = fields_of_row({"tokens": tokens}, ("tokens",))
    sample = Sample("train", "0", 0, (), fields, payload=payload)
    record = encode_sequence_example({}, {"tokens": (Kind.INT64, [[token] for token in tokens])})

    assert len(record) == pytest.approx(layout.record_bytes(sample), rel=0.15)
