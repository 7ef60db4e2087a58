import datetime
import json
from pathlib import Path

import pytest

import beam_tfrec
from beam_tfrec.pipelines.show import records_of_set
from beam_tfrec.pipelines.verify import VerifyConfig, verify
from beam_tfrec.schemas.manifest import Manifest, from_json
from beam_tfrec.schemas.shards import MAXDIFFUSION, ShardNames
from beam_tfrec.transforms.earlier import Since, find_earlier_sets
from beam_tfrec.transforms.leave_out_earlier import list_earlier_shards, read_written
from beam_tfrec.transforms.output_files import names_of_ours, refuse_foreign, remove_output
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, open_storage
from tests.invariants import files_of
from tests.small_runs import SmallSet, build_run, make_small

NAMES, CUSTOM = ShardNames(), ShardNames("file_{index:02}-{records}.tfrec")
FOLDERS = ShardNames(MAXDIFFUSION)


@pytest.fixture
def small(tmp_path: Path) -> SmallSet:
    """Six images in two shards."""
    return make_small(tmp_path, 6, num_shards=2)


def remove(small: SmallSet) -> None:
    remove_output(open_storage(str(small.out)), NAMES, ["train"])


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("manifest.json", NAMES),
        ("label_map.pbtxt", NAMES),
        ("train-00000-of-00004-10.tfrec", NAMES),
        ("train-00000-of-00004.tfrec", NAMES),  # the other standard grammar
        ("file_00-10.tfrec", CUSTOM),
        ("_receipts/train-00000-of-00004.json", NAMES),
        ("index/train-00000-of-00004.parquet", NAMES),
        ("train/00000-of-00004.tfrec", FOLDERS),
        ("index/train/00000-of-00004.idx", FOLDERS),
    ],
)
def test_files_named_like_ours_without_a_plan_are_foreign(
    small: SmallSet, name: str, names: ShardNames
) -> None:
    small.put([name, "a user's note.txt"])
    output = open_storage(str(small.out))
    fault = rf"^E-OUT-FOREIGN {small.out}: {name} is there, but no _plan\.json"
    with pytest.raises(RuntimeError, match=fault):
        refuse_foreign(output, names_of_ours(output, names, ["train"]))


NEIGHBOURS = [
    *("notes.txt", "train.tfrec", "train-00000-of-00004-10.tfrec.bak"),
    *("x-train-00000-of-00004.tfrec", "file_00-10.tfrec"),
    *("older/train-00000-of-00004-10.tfrec", "older/manifest.json"),
    *("_receipts/notes.txt", "_sources/notes.txt"),
    *("index/notes.txt", "index/train-00000-of-00004.parquet.bak"),
]


def test_other_files_are_ignored_and_kept(small: SmallSet) -> None:
    small.put(NEIGHBOURS)
    folder = small.out / "train-00000-of-00009-1.tfrec"
    folder.mkdir()  # a folder is not a shard
    build_run(small.plan())
    small.put(["test-00000-of-00004-10.tfrec"])  # our grammar, but not a split of this run
    small.put(["train-00000-of-00099-10.tfrec", "train-00000-of-00099.tfrec"])  # older runs'
    remove(small)
    assert files_of(small.out) == dict.fromkeys(
        [*NEIGHBOURS, "test-00000-of-00004-10.tfrec"], b"of the user"
    )
    assert folder.is_dir()


def test_older_data_sets_are_read_and_removed_by_their_index_names(small: SmallSet) -> None:
    """Before format version 3, indexes were named like receipts, without an `index_stem`."""
    build_run(small.plan())
    path = small.out / "manifest.json"
    manifest = json.loads(path.read_bytes())
    for number, shard in enumerate(manifest["shards"]):
        old, new = shard.pop("index_stem"), f"train-{number:05}-of-00002"
        for index in (small.out / "index").glob(f"{old}.*"):
            index.rename(index.with_name(f"{new}{index.suffix}"))
    path.write_text(json.dumps(manifest))
    out = str(small.out)
    records = beam_tfrec.open(out, "train")
    keys = [records.key(place) for place in range(len(records))]
    manifest = from_json(path.read_bytes(), Manifest)
    (shown,) = records_of_set(out, DEFAULT_ACCESS, manifest, "train", 0, keys[-1])
    (earlier,) = find_earlier_sets(Since([out], datetime.date.max), "", "detection").sets
    parts = [
        p
        for index in list_earlier_shards(earlier, ["train"])
        for p in read_written(index, DEFAULT_ACCESS, 1)
    ]
    written = [key for _, batch in parts for key in batch.sources]
    assert sorted(keys) == sorted(written) == [str(number) for number in range(1, 7)]
    assert shown.key == keys[-1]
    assert verify(VerifyConfig((out,), deep=True)) is False
    remove(small)
    assert [*small.out.iterdir()] == []  # no empty folder is left either


@pytest.mark.parametrize(
    "gone", [["_plan.json", "manifest.json"], ["manifest.json", "_receipts/*"]]
)
def test_incomplete_outputs_are_removed(small: SmallSet, gone: list[str]) -> None:
    build_run(small.plan())
    for path in [path for pattern in gone for path in small.out.glob(pattern)]:
        path.unlink()
    remove(small)
    assert files_of(small.out) == {}


def test_a_forged_receipt_deletes_nothing_outside_the_output(small: SmallSet) -> None:
    build_run(small.plan())
    small.put(["../outside.txt"])
    receipt = next(small.out.glob("_receipts/*"))
    forged = {**json.loads(receipt.read_bytes()), "file": "../outside.txt"}
    receipt.write_text(json.dumps(forged))
    remove(small)
    assert (small.out.parent / "outside.txt").read_bytes() == b"of the user"
    assert files_of(small.out) == {}


def test_without_plan_or_manifest_nothing_is_removed(small: SmallSet) -> None:
    small.put(["train-00000-of-00004-10.tfrec", "features.json", "_receipts/notes.txt"])
    remove(small)  # only a plan or a manifest shows that files are ours
    assert len(files_of(small.out)) == 3


NESTED = b'{"a": ' + b"[" * 10_000  # deeper than a parser follows
NEWER = b'{"format": "beam-tfrec", "format_version": 99}'


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("manifest.json", b'{"name": "of a web page"}', "not a manifest of beam-tfrec"),
        ("manifest.json", NEWER, "format version 99 is newer than 5; upgrade beam-tfrec"),
        pytest.param("_plan.json", NESTED, "_plan.json is not a plan of beam-tfrec", id="nested"),
    ],
)
def test_files_of_another_program_are_not_removed(
    small: SmallSet, name: str, data: bytes, what: str
) -> None:
    small.put([name], data)
    small.put(["train-00000-of-00004-10.tfrec"])
    before = files_of(small.out)
    with pytest.raises(RuntimeError, match=rf"^E-OUT-FOREIGN {small.out}.*: {what}"):
        remove(small)
    assert files_of(small.out) == before
