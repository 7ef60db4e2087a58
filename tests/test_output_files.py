import json
from pathlib import Path

import pytest

import readers
from pipelines.verify import VerifyConfig, verify
from schemas.manifest import Manifest, from_json
from schemas.shards import ShardNames
from tests.small_runs import SmallRun, build_run, contents, plan_run, write_set
from transforms.earlier import list_indexes, read_written
from transforms.output_files import (
    names_of_ours,
    refuse_foreign,
    remove_output,
)
from transforms.storage import DEFAULT_ACCESS, Storage, open_storage
from transforms.verify.show_record import records_of_set

STEMS = ["train-00000-of-00002", "train-00001-of-00002"]
CUSTOM = ShardNames("file_{index:02}-{records}.tfrec")


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path]:
    """Six images `a000.jpg` … `a005.jpg` with two objects each."""
    return write_set(tmp_path / "data", 6)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def output(out: Path) -> Storage:
    return open_storage(str(out))


@pytest.fixture
def run(data: tuple[Path, Path], out: Path) -> SmallRun:
    """The run that makes two shards of the six images."""
    return plan_run(*data, out)


def put(folder: Path, names: list[str], data: bytes = b"of the user") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


# --- creating ---


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("manifest.json", ShardNames()),
        ("label_map.pbtxt", ShardNames()),
        ("train-00000-of-00004-10.tfrec", ShardNames()),
        ("train-00000-of-00004.tfrec", ShardNames()),  # the other standard grammar
        ("file_00-10.tfrec", CUSTOM),
        ("_receipts/train-00000-of-00004.json", ShardNames()),
        ("index/train-00000-of-00004.parquet", ShardNames()),
    ],
)
def test_files_of_our_names_without_a_plan_are_foreign(
    out: Path, output: Storage, name: str, names: ShardNames
) -> None:
    put(out, [name, "a user's note.txt"])
    before = contents(out)

    with pytest.raises(RuntimeError) as raised:
        refuse_foreign(output, names_of_ours(output, names))

    assert str(raised.value).startswith(f"E-OUT-FOREIGN {out}: {name} is there, but no _plan.json")
    assert contents(out) == before


NEIGHBOURS = [
    "notes.txt",
    "train.tfrec",
    "train-00000-of-00004-10.tfrec.bak",
    "x-train-00000-of-00004.tfrec",
    "file_00-10.tfrec",
    "older/train-00000-of-00004-10.tfrec",
    "older/manifest.json",
    "_receipts/notes.txt",
    "_sources/notes.txt",
    "index/notes.txt",
    "index/train-00000-of-00004.parquet.bak",
]


def test_any_other_file_is_no_obstacle(run: SmallRun, out: Path) -> None:
    put(out, NEIGHBOURS)
    (out / "train-00000-of-00009-1.tfrec").mkdir()  # a folder is no shard

    build_run(run)

    assert {name: (out / name).read_bytes() for name in NEIGHBOURS} == dict.fromkeys(
        NEIGHBOURS, b"of the user"
    )


# --- removing ---


def test_removing_deletes_our_files_only(run: SmallRun, out: Path, output: Storage) -> None:
    build_run(run)
    put(out, NEIGHBOURS)
    put(out, ["test-00000-of-00004-10.tfrec"])  # our grammar, but not a split of this run
    put(out, ["train-00000-of-00099-10.tfrec", "train-00000-of-00099.tfrec"])  # older runs'
    (out / "train-00000-of-00009-1.tfrec").mkdir()

    remove_output(output, run.job.names, ["train"])

    assert contents(out).keys() == {*NEIGHBOURS, "test-00000-of-00004-10.tfrec"}
    assert (out / "train-00000-of-00009-1.tfrec").is_dir()


def test_older_data_sets_are_read_and_removed_by_their_index_names(
    run: SmallRun, out: Path, output: Storage
) -> None:
    """Before format version 3 indexes had the names of receipts, and no entry said so."""
    build_run(run)
    manifest = json.loads((out / "manifest.json").read_bytes())
    for number, shard in enumerate(manifest["shards"]):
        old, new = shard.pop("index_stem"), f"train-{number:05}-of-00002"
        for path in (out / "index").glob(f"{old}.*"):
            path.rename(path.with_name(f"{new}{path.suffix}"))
    (out / "manifest.json").write_text(json.dumps(manifest))

    records = readers.open(out, "train")
    keys = [records.key(place) for place in range(len(records))]
    (shown,) = records_of_set(str(out), DEFAULT_ACCESS, "train", key=keys[-1])
    parsed = from_json((out / "manifest.json").read_bytes(), Manifest)
    written = [key for i in list_indexes(parsed, str(out), ["train"]) for key in read_written(i)]

    assert sorted(keys) == sorted(written) == [str(number) for number in range(1, 7)]
    assert shown.key == keys[-1]
    assert verify(VerifyConfig((str(out),), deep=True)) is False
    remove_output(output, run.job.names, ["train"])
    assert contents(out) == {}


@pytest.mark.parametrize(
    "gone", [["_plan.json", "manifest.json"], ["manifest.json", "_receipts/*"]]
)
def test_any_remains_are_removed(
    run: SmallRun, out: Path, output: Storage, gone: list[str]
) -> None:
    build_run(run)
    for path in [path for pattern in gone for path in out.glob(pattern)]:
        path.unlink()

    remove_output(output, run.job.names, ["train"])

    assert contents(out) == {}


def test_a_receipt_cannot_make_us_delete_beyond_the_output(
    run: SmallRun, out: Path, output: Storage
) -> None:
    file = "../outside.txt"
    put(out.parent, ["outside.txt"])
    build_run(run)
    receipt = out / f"_receipts/{STEMS[0]}.json"
    receipt.write_bytes(json.dumps({**json.loads(receipt.read_bytes()), "file": file}).encode())

    remove_output(output, run.job.names, ["train"])

    assert (out.parent / "outside.txt").read_bytes() == b"of the user"
    assert contents(out) == {}


NESTED = b'{"a": ' + b"[" * 10_000  # deeper than a parser follows


def test_without_plan_or_manifest_nothing_is_removed(out: Path, output: Storage) -> None:
    # Whatever the names: no file says that this was ours.
    remove_output(output, ShardNames(), ["train"])
    put(out, ["train-00000-of-00004-10.tfrec", "features.json", "_receipts/notes.txt"])
    before = contents(out)

    remove_output(output, ShardNames(), ["train"])

    assert contents(out) == before


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("manifest.json", b'{"name": "of a web page"}', "no manifest of beam-tfrec"),
        (
            "manifest.json",
            b'{"format": "beam-tfrec", "format_version": 99}',
            "format version 99, this program reads 3; upgrade beam-tfrec",
        ),
        pytest.param("_plan.json", NESTED, "_plan.json is no plan of beam-tfrec", id="nested"),
    ],
)
def test_files_of_another_program_are_not_removed(
    out: Path, output: Storage, name: str, data: bytes, what: str
) -> None:
    put(out, [name], data)
    put(out, ["train-00000-of-00004-10.tfrec"])
    before = contents(out)

    with pytest.raises(RuntimeError, match=rf"^E-OUT-FOREIGN {out}.*: {what}"):
        remove_output(output, ShardNames(), ["train"])

    assert contents(out) == before
