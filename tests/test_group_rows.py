"""Groups of rows: which rows are of one sample, in what order, and what it holds."""

import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.table import configure
from schemas.columns import BIG_INT, BOOL, FLOAT, INT, LIST, NESTED, TEXT, kind_of_value
from schemas.layouts import Unfit
from schemas.manifest import read_manifest
from schemas.row_fields import row_of
from schemas.samples import Sample
from tests.conftest import jpeg_bytes
from tests.drawn_examples import draw
from tests.test_sequence_pipeline import parsed_singly
from tests.test_table_pipeline import convert, fault, shard_digests, write_json
from transforms.sources import group_rows, table_pieces
from transforms.sources.group_rows import (
    GroupReader,
    JoinedRows,
    OpenedRow,
    RowReader,
    join_rows,
    order_rows,
)
from transforms.sources.read_table import TableReader
from transforms.sources.table_files import TableFile
from transforms.sources.table_pieces import divide_file
from transforms.splits import Splitting
from transforms.storage import DEFAULT_ACCESS, open_storage

ARGV = ["--group_rows", "clip", "--sequence", "token"]


def opened(*rows: dict[str, Any]) -> list[OpenedRow]:
    return [
        OpenedRow(f"t line {place}", place, row, {n: kind_of_value(c) for n, c in row.items()})
        for place, row in enumerate(rows, start=1)
    ]


# --- the order of steps ---


ORDERS: list[tuple[list[Any], list[int]]] = [
    ([3, 1, 2], [2, 3, 1]),
    ([2, 1.5, -1], [3, 2, 1]),
    (["10", "9", "-2"], [3, 2, 1]),  # numbers, as CSV has them
    (["010", "9", "1e1", "+9.5"], [2, 4, 1, 3]),
    (["b", "a", "10"], [3, 2, 1]),
    (["2026-11-20", "2025-01-01"], [2, 1]),
    ([1, 0, 1, 0], [2, 4, 1, 3]),  # ties are as they lie
    ([2**63, "9", float("inf")], [2, 1, 3]),
]


@pytest.mark.parametrize(("cells", "wanted"), ORDERS, ids=str)
def test_rows_are_in_the_order_of_a_column(cells: list[Any], wanted: list[int]) -> None:
    rows = opened(*({"n": cell} for cell in cells))

    for given_rows in (rows, rows[::-1]):  # however they arrive
        found = order_rows(given_rows, "n")
        assert not isinstance(found, Unfit)
        assert [row.position for row in found] == wanted


def test_without_a_column_rows_are_as_they_lie() -> None:
    rows = opened({"n": 3}, {"n": 1}, {"n": 2})

    assert order_rows([rows[2], rows[0], rows[1]], "") == rows


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False))))
def test_numbers_are_ordered_as_python_orders_them(cells: list[int | float]) -> None:
    found = order_rows(opened(*({"n": cell} for cell in cells)), "n")

    assert not isinstance(found, Unfit)
    assert [row.cells["n"] for row in found] == sorted(cells)


NO_ORDERS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"n": 1}, {"n": None}], "t line 2: column 'n' gives no order: no value"),
    ([{"n": 1}, {}], "t line 2: column 'n' gives no order: no value"),
    ([{"n": float("nan")}], "t line 1: column 'n' gives no order: nan"),
    ([{"n": True}], "t line 1: column 'n' gives no order: True"),
    ([{"n": [1]}], "t line 1: column 'n' gives no order: [1]"),
    (
        [{"n": 1}, {"n": "x"}],
        "t line 2: column 'n' gives no order: 'x', where others are numbers",
    ),
]


@pytest.mark.parametrize(("rows", "detail"), NO_ORDERS)
def test_what_gives_no_order(rows: list[dict[str, Any]], detail: str) -> None:
    assert order_rows(opened(*rows), "n") == Unfit("E-ROW-GROUP", detail)


# --- what a sample holds ---


STEPS: list[tuple[list[Any], Any, int]] = [
    ([1, 2], [1, 2], LIST | INT),
    ([1, None, 2.5], [1, [], 2.5], LIST | INT | FLOAT | NESTED),
    ([[1], [], ["a"]], [[1], [], ["a"]], LIST | INT | TEXT | NESTED),
    ([True, [2**70]], [True, [2**70]], LIST | BOOL | BIG_INT | NESTED),
]


@pytest.mark.parametrize(("cells", "steps", "kinds"), STEPS, ids=str)
def test_every_row_is_a_step(cells: list[Any], steps: Any, kinds: int) -> None:
    rows = opened(*({"s": cell, "c": 7} for cell in cells))

    assert join_rows(rows, ["s"]) == JoinedRows(
        {"c": 7, "s": steps}, {"c": INT, "s": kinds}, frozenset(["c", "s"])
    )


def test_a_sequence_that_no_row_has_is_without_steps() -> None:
    assert join_rows(opened({"s": None}, {"c": 7}, {"c": 7})[:1], ["s"]) == JoinedRows(
        {}, {}, frozenset(["s"])
    )


def test_the_order_s_column_is_no_feature_unless_it_is_a_sequence() -> None:
    rows = opened({"n": 1, "s": 5}, {"n": 2, "s": 6})

    assert join_rows(rows, ["s"], "n") == JoinedRows(
        {"s": [5, 6]}, {"s": LIST | INT}, frozenset(["n", "s"])
    )
    both = join_rows(rows, ["s", "n"], "n")
    assert not isinstance(both, Unfit)
    assert both.cells == {"n": [1, 2], "s": [5, 6]}


SAME = [(7, 7), ("a", "a"), (None, None), (float("nan"), float("nan")), ([1, 2], [1, 2])]
OTHER = [(7, 8), (7, 7.0), (1, True), ("7", 7), (None, 7), ([1], [True]), ([], None)]


@pytest.mark.parametrize(("one", "two"), SAME, ids=str)
def test_what_is_the_same_in_all_rows(one: Any, two: Any) -> None:
    joined = join_rows(opened({"c": one}, {"c": two}), ["s"])

    assert not isinstance(joined, Unfit)


@pytest.mark.parametrize(("one", "two"), OTHER, ids=str)
def test_what_is_not(one: Any, two: Any) -> None:
    shown = ["nothing" if cell is None else repr(cell) for cell in (one, two)]

    assert join_rows(opened({"c": one}, {"c": one}, {"c": two}), ["s"]) == Unfit(
        "E-ROW-GROUP",
        f"t line 1: column 'c' is no sequence and holds {shown[0]}, but {shown[1]} in t line 3",
    )


def test_a_missing_column_is_a_missing_cell() -> None:
    joined = join_rows(opened({"s": 1, "c": None}, {"s": 2}), ["s"])

    assert not isinstance(joined, Unfit)
    assert joined.cells == {"s": [1, 2]}


# --- what arrives ---


def read_groups(
    folder: Path, tables: Sequence[Sequence[dict[str, Any]]], rng: random.Random
) -> list[Sample]:
    """Return the samples of groups of tables, whose rows arrive in some order."""
    storage = open_storage(str(folder))
    together: dict[tuple[str, str, str], list[Sample]] = {}
    table = TableReader(Splitting(), DEFAULT_ACCESS, key_column="g", sequence_columns=("s",))
    for place, rows in enumerate(tables):
        write_json(folder / f"{place}.jsonl", rows)
        entry = storage.stat(f"{place}.jsonl")
        assert entry is not None
        file = TableFile("train", str(folder), entry, place)
        for piece in divide_file(file, storage):
            for key, sample in RowReader(table, "n")(piece):
                together.setdefault(key, []).append(sample)
    groups = [*together.items()]
    rng.shuffle(groups)
    found = [
        item for key, rows in groups for item in GroupReader(table, "n")((key, shuffled(rows, rng)))
    ]
    return sorted((item for item in found if isinstance(item, Sample)), key=lambda s: s.key)


def shuffled(rows: list[Sample], rng: random.Random) -> list[Sample]:
    return rng.sample(rows, len(rows))


ROW = st.fixed_dictionaries(
    {"g": st.integers(0, 3), "n": st.integers(0, 3), "s": st.integers() | st.none() | st.text()}
)


@draw(60)
@given(st.lists(st.lists(ROW, max_size=8), max_size=3), st.randoms(use_true_random=False))
def test_groups_do_not_depend_on_what_arrives_when(
    tables: list[list[dict[str, Any]]], rng: random.Random
) -> None:
    in_order = [row for rows in tables for row in rows]
    wanted = {}
    for key in {row["g"] for row in in_order}:
        steps = sorted((row for row in in_order if row["g"] == key), key=lambda row: row["n"])
        cells = [row["s"] for row in steps]
        has_any = any(cell is not None for cell in cells)
        as_steps = ([[] if cell is None else plainly(cell) for cell in cells]) if has_any else None
        wanted[str(key)] = {"g": key} | ({"s": as_steps} if has_any else {})
    with tempfile.TemporaryDirectory() as folder:
        found = read_groups(Path(folder), tables, rng)

    assert {sample.key: row_of(sample) for sample in found} == wanted


def plainly(cell: Any) -> Any:
    """Return a cell as MessagePack has it."""
    return str(cell) if isinstance(cell, int) and not -(2**63) <= cell < 2**63 else cell


# --- whole runs, as TensorFlow reads them ---


CLIPS: list[dict[str, Any]] = [
    {"clip": "a", "fps": 25, "frame": 2, "token": 5, "boxes": [0.5], "kind": "cat"},
    {"clip": "b", "fps": 30, "frame": 1, "token": 7, "boxes": [], "kind": "dog"},
    {"clip": "a", "fps": 25, "frame": 0, "token": 6, "boxes": None, "kind": "cat"},
    {"clip": "b", "fps": 30, "frame": 0, "token": 8, "boxes": [1.5, 2.5], "kind": "dog"},
    {"clip": "a", "fps": 25, "frame": 1, "token": -1, "boxes": [3.5], "kind": "cat"},
    {"clip": "c", "fps": 30, "frame": 0, "token": 300, "boxes": [4.5], "kind": "cat"},
]
FLAGS = [*ARGV, "boxes", "--order_rows", "frame", "--order", "input"]
WANTED = [
    {
        "clip": b"a",
        "fps": 25,
        "kind": b"cat",
        "token": [6, -1, 5],
        "boxes": [[], [3.5], [0.5]],
    },
    {"clip": b"b", "fps": 30, "kind": b"dog", "token": [8, 7], "boxes": [[1.5, 2.5], []]},
    {"clip": b"c", "fps": 30, "kind": b"cat", "token": [300], "boxes": [[4.5]]},
]


def keys_of(output: Path) -> list[str]:
    import pyarrow.parquet

    found = [pyarrow.parquet.read_table(path) for path in sorted((output / "index").glob("*.pa*"))]
    return [key for table in found for key in table["key"].to_pylist()]


def test_rows_of_a_value_become_one_record(tmp_path: Path) -> None:
    import tensorflow as tf

    from schemas.features import RepeatedAs, parse_sequence_spec
    from tests.test_sequence_pipeline import plain, spec_of
    from tests.test_table_pipeline import records

    table = write_json(tmp_path / "t.jsonl", CLIPS)
    manifest = convert(tmp_path / "out", "--table", table, *FLAGS)

    assert parsed_singly(tmp_path / "out") == WANTED
    assert keys_of(tmp_path / "out") == ["a", "b", "c"]
    assert (manifest.layout, manifest.plan.options["group_rows"]) == ("sequence", "clip")
    assert manifest.plan.options["order_rows"] == "frame"
    split = manifest.splits["train"]
    assert (split.listed, split.planned, split.records) == (3, 3, 3)
    spec = parse_sequence_spec(spec_of(tmp_path / "out"), RepeatedAs.RAGGED)
    context, steps, lengths = tf.io.parse_sequence_example(records(tmp_path / "out"), *spec)
    assert plain(context["fps"]) == [25, 30, 30]
    assert plain(steps["token"]) == [[6, -1, 5], [8, 7, 0], [300, 0, 0]]
    assert plain(lengths["token"]) == [3, 2, 1]


def test_wherever_rows_lie_the_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece, in many, in several files of a folder, large or small."""
    rows = [{**row, "text": "x" * 1000} for row in CLIPS]
    whole = convert(tmp_path / "o1", "--table", write_json(tmp_path / "t.jsonl", rows), *FLAGS)
    folder = tmp_path / "in"
    folder.mkdir()
    for place, row in enumerate(rows):
        write_json(folder / f"{place}.jsonl", [row])
    files = convert(tmp_path / "o2", "--table", folder, *FLAGS)
    monkeypatch.setattr(table_pieces, "PIECE_BYTES", 1500)
    pieces = convert(tmp_path / "o3", "--table", tmp_path / "t.jsonl", *FLAGS)
    monkeypatch.setattr(group_rows, "LARGE_ROW_BYTES", 1 << 20)
    apart = convert(
        *(tmp_path / "o4", "--table", tmp_path / "t.jsonl", *FLAGS),
        *("--direct_running_mode", "multi_processing", "--direct_num_workers", "1"),
    )

    assert pieces == apart == whole
    assert shard_digests(files) == shard_digests(whole)


def test_every_format_gives_the_same(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{k: v for k, v in row.items() if k != "boxes"} for row in CLIPS]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    (tmp_path / "t.tsv").write_text("\n".join(lines).replace(",", "\t"))
    write_json(tmp_path / "t.jsonl", rows)
    argv = [*ARGV, "--order_rows", "frame", "--order", "input"]
    made = {
        ending: convert(tmp_path / ending, "--table", tmp_path / f"t.{ending}", *argv)
        for ending in ("jsonl", "csv", "tsv", "parquet")
    }

    assert len({tuple(shard_digests(manifest)) for manifest in made.values()}) == 1
    assert parsed_singly(tmp_path / "csv") == [
        {name: value for name, value in row.items() if name != "boxes"} for row in WANTED
    ]


def test_captions_of_an_image_and_its_class(tmp_path: Path) -> None:
    """An image with several rows is one record: the most usual table of captions."""
    (tmp_path / "photos").mkdir()
    for name in ("0.jpg", "1.jpg"):
        (tmp_path / "photos" / name).write_bytes(jpeg_bytes(color=int(name[0])))
    table = tmp_path / "photos" / "t.csv"
    table.write_text("image,kind,caption\n1.jpg,cat,a cat\n0.jpg,dog,a dog\n1.jpg,cat,\n")
    argv = ["--image_column", "image", "--label_column", "kind", "--order", "input"]
    convert(
        *(tmp_path / "out", "--table", table, "--group_rows", "image"),
        *("--sequence", "caption", *argv),
    )

    one, two = parsed_singly(tmp_path / "out")
    assert one["caption"] == [[b"a cat"], []]  # a missing one is a step without a value
    assert two["caption"] == [[b"a dog"]]
    assert one["image/encoded"] == jpeg_bytes(color=1)
    assert (one["image/class/text"], two["image/class/text"]) == (b"cat", b"dog")


def test_frames_a_row_each_in_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    frames = [jpeg_bytes(color=color) for color in range(5)]
    rows = [{"clip": f"v{n % 2}", "n": n, "frame": frame} for n, frame in enumerate(frames)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    argv = ["--group_rows", "clip", "--order_rows", "n", "--sequence", "frame", "--order", "input"]
    convert(tmp_path / "out", "--table", tmp_path / "t.parquet", *argv)

    assert [row["frame"] for row in parsed_singly(tmp_path / "out")] == [
        frames[0::2],
        frames[1::2],
    ]


def test_given_types_are_of_rows(tmp_path: Path) -> None:
    table = write_json(tmp_path / "t.jsonl", [*CLIPS, {"clip": "d", "token": None, "boxes": [1]}])
    types = ["--types", "token=float,boxes=float[],fps=int64?,kind=bytes?"]
    argv = ["--table", table, *FLAGS[:5], *types, "--order", "input"]
    convert(tmp_path / "out", *argv, "--types", "frame=int64?", "--max_rejected", 3)
    lines = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    rejects = [(json.loads(line)["key"], json.loads(line)["code"]) for line in lines]

    assert rejects == [("a", "E-ROW-GROUP"), ("b", "E-ROW-GROUP")]  # frame, which is no sequence
    assert [row["token"] for row in parsed_singly(tmp_path / "out")] == [[300.0], []]

    convert(tmp_path / "two", *argv[:-4], *FLAGS[5:], *types, "--max_rejected", 1)
    (line,) = (tmp_path / "two" / "rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["detail"] == "t.jsonl line 7: column 'frame' gives no order: no value"
    assert [row["token"] for row in parsed_singly(tmp_path / "two")] == [
        [6.0, -1.0, 5.0],
        [8.0, 7.0],
        [300.0],
    ]


def test_a_step_without_a_value_does_not_fit_a_type_of_one(tmp_path: Path) -> None:
    rows = [{"clip": "a", "token": 1}, {"clip": "a", "token": None}, {"clip": "b", "token": 2}]
    table = write_json(tmp_path / "t.jsonl", rows)
    argv = ["--table", table, *ARGV, "--max_rejected", 1]
    convert(tmp_path / "out", *argv, "--types", "token=int64")
    (line,) = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["code"] == "E-ROW-TYPE"
    assert json.loads(line)["detail"] == "column 'token' is int64[] and holds a list of 0"

    convert(tmp_path / "may", *argv, "--types", "token=int64?", "--order", "input")
    assert [row["token"] for row in parsed_singly(tmp_path / "may")] == [[[1], []], [[2]]]


# --- what is no group's, or no group ---


def test_rejects_and_sums(tmp_path: Path) -> None:
    rows = [
        '{"clip": "a", "fps": 1, "token": 1}',
        '{"clip": "a", "fps": 2, "token": 2}',
        "no JSON",
        '{"clip": null, "token": 1}',
        '{"clip": "b", "fps": 1, "token": [[1]]}',
        '{"clip": "b", "fps": 1, "token": 1}',
        '{"clip": "c", "fps": 1, "token": 3}',
        '{"clip": 7, "fps": 1, "token": 4}',
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    argv = ["--table", tmp_path / "t.jsonl", *ARGV, "--order", "input"]
    assert "4 of 6 samples rejected" in fault(tmp_path / "stopped", *argv)

    manifest = convert(tmp_path / "out", *argv, "--max_rejected", 4)
    lines = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()

    split = manifest.splits["train"]
    assert (split.listed, split.rejected_before_planning, split.records) == (6, 4, 2)
    assert {line["key"]: (line["code"], line["detail"]) for line in map(json.loads, lines)} == {
        "a": (
            "E-ROW-GROUP",
            "t.jsonl line 1: column 'fps' is no sequence and holds 1, but 2 in t.jsonl line 2",
        ),
        "b": ("E-ROW-TYPE", "t.jsonl line 5: column 'token' holds a list of lists"),
        "t.jsonl:2": (
            "E-ROW-JSON",
            "t.jsonl line 3: no JSON: JSON is malformed: invalid character (byte 4)",
        ),
        "t.jsonl:3": ("E-ROW-KEY", "t.jsonl line 4: column 'clip' gives no key: no value"),
    }
    assert [row["token"] for row in parsed_singly(tmp_path / "out")] == [[3], [4]]

    again = convert(tmp_path / "again", *argv, "--exclude", tmp_path / "out" / "rejected.jsonl")
    assert shard_digests(again) == shard_digests(manifest)
    assert again.splits["train"].excluded == 4


def test_a_rejected_group_tells_nothing_of_types(tmp_path: Path) -> None:
    rows = [{"clip": "a", "c": 1, "token": "x"}, {"clip": "a", "c": 2, "token": 1}]
    table = write_json(tmp_path / "t.jsonl", [*rows, {"clip": "b", "c": 1, "token": 1}])
    manifest = convert(tmp_path / "out", "--table", table, *ARGV, "--max_rejected", 1)

    assert {f.key: f.kind for f in manifest.features} == {
        "c": "int64",
        "clip": "bytes",
        "token": "int64",
    }


def test_a_group_that_no_record_could_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"clip": "a", "token": "x" * 300} for _ in range(9)]
    table = write_json(tmp_path / "t.jsonl", [*rows, {"clip": "b", "token": "y"}])
    monkeypatch.setattr(group_rows, "MAX_EXAMPLE_BYTES", 2000)
    convert(tmp_path / "out", "--table", table, *ARGV, "--max_rejected", 1)
    (line,) = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()

    assert json.loads(line)["code"] == "E-EX-TOO-LARGE"
    assert json.loads(line)["detail"] == (
        "more than 2000 bytes in its rows, the first of them t.jsonl line 1"
    )
    assert [row["token"] for row in parsed_singly(tmp_path / "out")] == [[b"y"]]


def test_an_image_outside_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    table = write_json(tmp_path / "rows" / "t.jsonl", [{"image": "../x.jpg", "c": 1}] * 2)
    argv = ["--group_rows", "image", "--image_column", "image", "--sequence", "c"]
    convert(tmp_path / "out", "--table", table, *argv, "--max_rejected", 1, "--allow_empty")
    (line,) = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()

    assert json.loads(line)["code"] == "E-ROW-PATH"
    assert json.loads(line)["detail"].startswith("t.jsonl line 1: '../x.jpg' ")


def test_other_files_of_a_folder_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_json(folder / "t.jsonl", CLIPS)
    (folder / "README.md").write_text("of tables")
    split = convert(tmp_path / "out", "--table", folder, *FLAGS).splits["train"]

    assert (split.listed, split.records, split.skipped) == (4, 3, {"not_called_a_table": 1})


# --- splits and later runs ---


def test_splits_of_groups(tmp_path: Path) -> None:
    rows = [
        {"clip": f"{n % 40}", "room": f"r{n % 4}", "part": "val" if n % 40 < 9 else "train"}
        for n in range(120)
    ]
    table = write_json(tmp_path / "t.jsonl", [{**row, "token": n} for n, row in enumerate(rows)])
    argv = ["--table", table, *ARGV]
    by_hash = ["--split_by", "hash", "--splits", "train=50,val=50"]

    def clips(name: str, *flags: object) -> dict[str, set[str]]:
        manifest = convert(tmp_path / name, *argv, *flags)
        assert sum(split.records for split in manifest.splits.values()) == 40
        return {split: set(keys_in(tmp_path / name, split)) for split in manifest.splits}

    drawn = clips("hash", *by_hash)
    assert not drawn["train"] & drawn["val"] and min(map(len, drawn.values())) > 5
    of_rooms = clips("rooms", *by_hash, "--group_by", "room")
    rooms = {split: {int(clip) % 4 for clip in found} for split, found in of_rooms.items()}
    assert not rooms["train"] & rooms["val"]
    assert clips("said", "--split_by", "part")["val"] == {str(n) for n in range(9)}


def keys_in(output: Path, split: str) -> Sequence[str]:
    import pyarrow.parquet

    paths = sorted((output / "index").glob(f"{split}-*.parquet"))
    return [key for path in paths for key in pyarrow.parquet.read_table(path)["key"].to_pylist()]


def test_rows_of_a_group_in_two_splits(tmp_path: Path) -> None:
    rows = [{"clip": "a", "part": part, "token": 1} for part in ("val", "train")]
    table = write_json(tmp_path / "t.jsonl", [*rows, {"clip": "b", "part": "train", "token": 1}])
    argv = ["--table", table, *ARGV, "--split_by", "part", "--max_rejected", 1, "--allow_empty"]
    manifest = convert(tmp_path / "out", *argv)

    assert manifest.splits["val"].rejected == {"E-ROW-GROUP": 1}  # as its first row says
    assert manifest.splits["train"].records == 1


def test_rows_that_do_not_agree_on_their_split_s_group(tmp_path: Path) -> None:
    rows = [{"clip": "a", "room": room, "token": 1} for room in ("x", "y")]
    table = write_json(tmp_path / "t.jsonl", rows)
    argv = ["--table", table, *ARGV, "--split_by", "hash", "--splits", "train=50,val=50"]
    line = fault(tmp_path / "out", *argv, "--group_by", "room", "--allow_empty")

    assert "column 'room' is no sequence and holds 'x', but 'y' in t.jsonl line 2" in line


def test_a_group_without_its_split_stops_the_run(tmp_path: Path) -> None:
    table = write_json(tmp_path / "t.jsonl", [{"clip": "a", "token": 1}])
    line = fault(tmp_path / "out", "--table", table, *ARGV, "--split_by", "part")

    assert line.startswith(
        "E-SRC-SPLIT group 'a' at t.jsonl line 1: part has no value, and decides its split;"
    )


def test_a_shard_that_is_there_is_kept(tmp_path: Path) -> None:
    rows = [{"clip": f"{n % 40}", "token": n} for n in range(120)]
    argv = ["--table", write_json(tmp_path / "t.jsonl", rows), *ARGV, "--num_shards", 4]
    whole = convert(tmp_path / "whole", *argv)
    convert(tmp_path / "out", *argv)
    for name in ("manifest.json", whole.shards[2].file):
        (tmp_path / "out" / name).unlink()
    kept = tmp_path / "out" / whole.shards[0].file
    before = kept.stat().st_mtime_ns

    assert convert(tmp_path / "out", *argv) == whole
    assert kept.stat().st_mtime_ns == before


def test_later_groups_are_added_and_later_rows_of_old_ones_are_not(tmp_path: Path) -> None:
    monday = write_json(tmp_path / "monday.jsonl", CLIPS[:5])
    tuesday = write_json(tmp_path / "tuesday.jsonl", [*CLIPS, {**CLIPS[0], "frame": 9}])
    convert(tmp_path / "one", "--table", monday, *FLAGS)
    argv = ["--table", tuesday, *FLAGS, "--since", tmp_path / "one"]
    manifest = convert(tmp_path / "two", *argv)

    assert [row["clip"] for row in parsed_singly(tmp_path / "two")] == [b"c"]
    assert manifest.splits["train"].earlier == 2
    argv[argv.index("clip")] = "kind"
    assert "split or keyed otherwise: group_rows clip, and now group_rows kind" in fault(
        tmp_path / "x", *argv
    )


def test_the_options_have_an_effect(tmp_path: Path) -> None:
    table = write_json(tmp_path / "t.jsonl", CLIPS)
    argv = ["--table", table, "--sequence", "token", "boxes", "frame", "fps", "--order", "input"]
    argv += ["--types", "token=int64[],frame=int64[],fps=int64[]"]
    single = convert(tmp_path / "rows", *argv)
    argv = argv[:-2]
    grouped = convert(tmp_path / "groups", *argv, "--group_rows", "clip")
    ordered = convert(tmp_path / "ordered", *argv, "--group_rows", "clip", "--order_rows", "frame")

    made = [single, grouped, ordered]
    assert [manifest.splits["train"].records for manifest in made] == [6, 3, 3]
    assert [row["frame"] for row in parsed_singly(tmp_path / "groups")] == [[2, 0, 1], [1, 0], [0]]
    assert [row["frame"] for row in parsed_singly(tmp_path / "ordered")] == [
        [0, 1, 2],
        [0, 1],
        [0],
    ]
    plan = read_manifest((tmp_path / "rows/manifest.json").read_bytes(), "").plan.options
    assert not {"group_rows", "order_rows"} & {*plan}
    line = fault(tmp_path / "groups", *argv, "--group_rows", "clip", "--order_rows", "frame")
    assert line.startswith("E-OUT-PLAN")


# --- what is refused ---


REFUSED = [
    (
        ["--order_rows", "n"],
        "order_rows must come with group_rows, got 'n' alone: name the column of the groups, or"
        " leave it out",
    ),
    (
        ["--group_rows", "g"],
        "group_rows must come with sequence, got 'g' alone: name the columns whose rows are steps",
    ),
    (
        ["--group_rows", "g", "--sequence", "s", "--key_column", "k"],
        "group_rows gives the keys, got 'g' and key_column 'k': leave --key_column out",
    ),
    (
        ["--group_rows", "g", "--sequence", "s", "--order_rows", "g"],
        "order_rows must be another column than group_rows, got 'g' for both: leave it out",
    ),
    (
        ["--group_rows", "g", "--sequence", "g"],
        "sequence must not name the column of group_rows where rows are grouped, since it is the"
        " same in all rows of a group, got 'g': leave it out",
    ),
    (
        ["--group_rows", "g", "--sequence", "i", "--image_column", "i"],
        "sequence must not name image_column where rows are grouped, since a record has one image,"
        " got 'i': give frames as a Parquet column of bytes",
    ),
    (
        ["--group_rows", "g", "--sequence", "p", "--split_by", "p"],
        "sequence must not name the column of split_by where rows are grouped, since it is the"
        " same in all rows of a group, got 'p': leave it out",
    ),
    (
        ["--group_rows", "g", "--sequence", "s", "--types", "s=int64[][]"],
        "types must be those of a row's cells where rows are steps, got int64[][] of 's': give"
        " s=int64[]",
    ),
]


@pytest.mark.parametrize(("argv", "message"), REFUSED)
def test_flags_that_do_not_fit_together(argv: list[str], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        configure(["--table", "t.jsonl", *argv, "--output", "out"])

    assert str(raised.value) == message


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    argv = ["--table", tmp_path / "t.csv", "--sequence", "b"]

    line = fault(tmp_path / "out", *argv, "--group_rows", "c")
    assert "has no column 'c', which group_rows names; name one of a, b" in line
    line = fault(tmp_path / "out", *argv, "--group_rows", "a", "--order_rows", "c")
    assert "has no column 'c', which order_rows names; name one of a, b" in line
    argv[-1] = "c"
    line = fault(tmp_path / "out", *argv, "--group_rows", "a")
    assert "sequence must name a column, got 'c'; give one of a, b" in line
