"""`verify` finds each planted fault of a data set, and nothing in a whole one."""

import datetime
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import beam_tfrec
from beam_tfrec.pipelines.show import parser, show
from beam_tfrec.pipelines.verify import VerifyConfig, verify
from beam_tfrec.schemas.documents.data_card import BLANK_SEAL, sealed
from beam_tfrec.schemas.faults import RejectBudget
from beam_tfrec.schemas.manifest import JobPlan, from_json, plan_digest
from beam_tfrec.schemas.shards import file_sum
from beam_tfrec.transforms.earlier import Since, find_earlier_sets
from beam_tfrec.transforms.report.gather import make_report
from beam_tfrec.transforms.shard_index import IndexRow, index_from_parquet, index_to_parquet
from beam_tfrec.transforms.storage import Access
from tests.small_data_sets import older_index
from tests.small_runs import build_run, plan_run, write_set
from tests.test_verify_files import verified

RESTORE = "restore it from a copy, or delete it and manifest.json and run the command again"
COPY = "restore it from a copy"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, annotations, and `out` of two splits, two shards each."""
    folder = tmp_path_factory.mktemp("whole")
    images, annotations = write_set(folder, 6)
    (images / "a005.jpg").write_bytes(b"no image")
    roots = {"train": images, "val": images}
    files: dict = {"train": annotations, "val": annotations}
    run = plan_run(roots, files, folder / "out", num_shards=2, budget=RejectBudget(2))
    build_run(run)
    return folder


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole / "out", tmp_path / "out")
    return tmp_path / "out"


def lines(out: Path, **config: Any) -> list[str]:
    """Return what verify prints except its last line."""
    return [line.replace(str(out), "OUT") for line in verified(out, **config)[1][:-1]]


def edit(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def edit_manifest(change: Callable[[dict], object]) -> Callable[[Path], None]:
    return lambda out: edit(out / "manifest.json", change)


def edit_rows(out: Path, change: Callable[[list[IndexRow]], list[IndexRow]]) -> list[IndexRow]:
    """Change the rows of the first shard's index; return them as they were."""
    path = out / INDEX
    rows = index_from_parquet(path.read_bytes())
    path.write_bytes(index_to_parquet(change(rows)))
    return rows


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def shards(out: Path) -> list[Path]:
    return sorted(out.glob("train-*.tfrec"))


def test_a_whole_data_set(out: Path) -> None:
    assert lines(out) == []
    assert lines(out, deep=True, workers=3) == []


PAIR = {"splits": ["train", "val"], "contents": 3, "sha256": "0", "names": ["a", "b"]}
EDITABLE = ("README.md", "croissant.json", "report.html")
KINDS = (
    *("manifest.json", "_plan.json", "label_map.pbtxt", "rejected.jsonl"),
    *("features.json", "dataset_info.json", "schema.pbtxt", *EDITABLE, "_sources/*.json"),
    *("_receipts/*.json", "index/*.parquet", "index/*.idx", "*.tfrec"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_of_any_file_is_found(kind: str, out: Path) -> None:
    """In documents, which users may edit, it is a note."""
    (out / "report.html").write_text(sealed(f"<!-- {BLANK_SEAL} --><p>report</p>"))
    assert lines(out) == []
    path = min(out.glob(kind))
    data = path.read_bytes()
    for bit in range(0, 8 * len(data), max(1, 8 * len(data) // 9) | 1):
        path.write_bytes(data)
        flip(path, bit // 8)
        try:
            found, (*printed, _) = verified(out)
        except RuntimeError as error:  # a manifest of another program or version
            assert str(error).startswith("E-OUT-FOREIGN"), bit
            continue
        assert found is (kind not in EDITABLE), (bit, printed)
        assert printed, bit
        if not found:
            assert printed == [f"{kind} was edited"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_data_sets_of_earlier_formats_are_read(version: int, out: Path) -> None:
    """They lack what later versions added."""

    def change_plan(plan: dict) -> None:
        plan["format_version"] = version
        if version == 1:
            del plan["found"]

    def change(manifest: dict) -> None:
        manifest["format_version"] = version
        change_plan(manifest["plan"])
        manifest["files"]["_plan.json"] = sum_of(out / "_plan.json")
        for entry, receipt in zip(manifest["shards"], receipts, strict=True):
            entry["receipt"] = sum_of(receipt)
        if version < 3:
            del manifest["files"]
            for entry in manifest["shards"]:
                del entry["receipt"]

    def sum_of(path: Path) -> dict:
        return msgspec.to_builtins(file_sum(path.read_bytes()))

    receipts = sorted((out / "_receipts").iterdir())
    edit(out / "_plan.json", change_plan)
    digest = plan_digest(from_json((out / "_plan.json").read_bytes(), JobPlan))
    for path in receipts:
        edit(path, lambda receipt: receipt.update(plan=digest))
    edit(out / "manifest.json", change)
    for path in (out / "index").glob("*.parquet"):
        path.write_bytes(older_index(path.read_bytes(), version))
    assert lines(out, deep=True) == []
    assert len(list(beam_tfrec.open(str(out), "train"))) == 5
    assert any(
        "image/encoded" in line for line in show(parser().parse_args([str(out), "--limit=1"]))
    )
    since = Since([str(out)], datetime.date(2026, 11, 20))
    assert len(find_earlier_sets(since, "/nowhere/out", "detection").sets) == 1
    report, lacks = make_report(str(out), Access()), f"format version {version} has no such columns"
    no_charts = f"no charts of picture sizes and objects: {lacks}"
    assert report.notes == ([no_charts] if version < 3 else [])
    assert len(report.splits[0].histograms) == (1 if version < 3 else 4)
    assert (len(report.pictures), report.splits[0].class_records) == (10, {1: 5, 2: 5})


def relabel(rows: list[IndexRow]) -> list[IndexRow]:
    return [msgspec.structs.replace(rows[0], labels=[1, 1, 1], image_width=7), *rows[1:]]


def remove(out: Path) -> None:
    (out / "notes.txt").touch()  # a user's own file is not a fault
    for name in (shards(out)[0].name, *TOOLS, INDEX, RECEIPT, "croissant.json"):
        (out / name).unlink()


def put_folders(out: Path) -> None:
    for name in (shards(out)[0].name, *SMALL):
        (out / name).unlink()
        (out / name).mkdir()


def alter(out: Path) -> None:
    edit(out / RECEIPT, lambda info: info.update(planned=7))
    edit(out / "_plan.json", lambda plan: plan.update(samples="0" * 64))
    rejects = (out / "rejected.jsonl").read_bytes().splitlines(keepends=True)
    (out / "rejected.jsonl").write_bytes(rejects[1])
    shutil.copy(out / "index/train-00001-of-00002-3.idx", out / TEXT_INDEX)
    (out / "train-00000-of-00004-9.tfrec").touch()


def contradict(manifest: dict) -> None:
    manifest["duplicates"] = [PAIR]
    manifest["splits"]["train"]["records"] = 6
    del manifest["shards"][0]["receipt"]
    manifest["files"]["../notes.txt"] = {"bytes": 1, "crc32c": "00000000"}


INDEX = "index/train-00000-of-00002-2.parquet"
TEXT_INDEX = "index/train-00000-of-00002-2.idx"
RECEIPT = "_receipts/train-00000-of-00002.json"
TOOLS = ("dataset_info.json", "schema.pbtxt", "features.json")
SMALL = ("_plan.json", "rejected.jsonl", INDEX)
MANIFEST = "E-VER-MANIFEST manifest.json:"
CONTRADICTS = "contradicts the manifest"
STRAY = "is named or placed like a file of a shard, but is not in the manifest; move it away: "
FAULTS: Mapping[str, tuple[Callable[[Path], object], list[str]]] = {
    "files are gone": (
        remove,
        [
            f"E-VER-MISSING OUT/{{0}}: is missing; {RESTORE}",
            *(f"E-VER-MISSING {name}: is missing; {RESTORE}" for name in (*TOOLS, INDEX, RECEIPT)),
            "croissant.json was deleted",
        ],
    ),
    "folders in their places": (
        put_folders,
        [
            f"E-VER-MISSING OUT/{{0}}: is a directory; {RESTORE}",
            *(f"E-VER-MISSING {name}: is a directory; " for name in SMALL),
        ],
    ),
    "small files are another run's": (
        alter,
        [
            f"E-VER-MANIFEST {RECEIPT}: planned is 7, the manifest says 3; {RESTORE}",
            f"E-VER-MANIFEST _plan.json: {CONTRADICTS}; {COPY}",
            f"E-VER-MANIFEST rejected.jsonl: {CONTRADICTS}; {RESTORE}",
            f"E-VER-INDEX {TEXT_INDEX}: is not the text form of {INDEX}; {RESTORE}",
            f"E-VER-FOREIGN train-00000-of-00004-9.tfrec: {STRAY}",
        ],
    ),
    "a shard is cut off": (
        lambda out: os.truncate(shards(out)[0], shards(out)[0].stat().st_size - 1),
        [
            f"E-VER-SIZE OUT/{{0}}: has {{bytes-1}} bytes, the manifest says {{bytes}}; {RESTORE}",
            "E-VER-FRAME {0} record {last} (key '{key}') at byte {offset}: the file ends within a"
            " record of {size} bytes or its checksum; the rest of the file was not read;"
            f" {RESTORE}",
        ],
    ),
    "rows in another order": (
        lambda out: edit_rows(out, lambda rows: rows[::-1]),
        [
            f"E-VER-INDEX {TEXT_INDEX}: is not the text form",
            f"E-VER-INDEX {INDEX}: its first 0 records end at byte 0, the next part begins at",
            "E-VER-ORDER {0} record 1",
        ],
    ),
    "labels and image size in the index alone": (
        lambda out: edit_rows(out, relabel),
        [
            "E-VER-EXAMPLE {0} record 0 (key '{first}') at byte 0: feature"
            " 'image/object/class/label' has the labels [1 2], the index says [1 1 1]; ",
            "E-VER-EXAMPLE {0} record 0 (key '{first}') at byte 0: feature 'image/width' is"
            " [{width}], the index says 7; ",
        ],
    ),
    "a manifest that contradicts itself": (
        edit_manifest(contradict),
        [
            f"{MANIFEST} records of split train are 5 by its entries, 6 by its sums; {COPY}",
            f"{MANIFEST} rejects of shards of split train are 0 by its entries, 1 by its sums; ",
            f"{MANIFEST} has a checksum of ../notes.txt, which this program never writes; {COPY}",
            f"E-VER-CRC {RECEIPT}: its size or CRC-32C differs from the manifest; {RESTORE}",
            f"E-VER-MISSING duplicates.jsonl: is missing; {RESTORE}",
        ],
    ),
    "an unknown order": (
        edit_manifest(lambda m: m["plan"]["options"].update(order="all=backwards")),
        [f"{MANIFEST} has values that this program never writes ('backwards' is not a valid Order"],
    ),
    "a key that no manifest has": (
        edit_manifest(lambda m: m.update(surplus=1)),
        [f"E-VER-MANIFEST OUT/manifest.json: has an unknown key 'surplus'; {COPY}"],
    ),
    "not a manifest": (
        lambda out: (out / "manifest.json").write_bytes(b"{"),
        [f"E-VER-MANIFEST OUT/manifest.json: no manifest (Input data was truncated); {COPY}"],
    ),
    "other checksums in the manifest": (
        edit_manifest(lambda m: m["shards"][0].update(crc32c="0" * 8, sha256="0" * 64)),
        [
            *(f"E-VER-MANIFEST {RECEIPT}: {of} is" for of in ("crc32c", "sha256")),
            *(f"E-VER-CRC {{0}}: the file's {of} is" for of in ("CRC-32C", "SHA-256")),
        ],
    ),
}


@pytest.mark.parametrize(("plant", "said"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_named(
    plant: Callable[[Path], object], said: list[str], out: Path
) -> None:
    rows, shard = index_from_parquet((out / INDEX).read_bytes()), shards(out)[0]
    size, total = rows[-1].size - 16, shard.stat().st_size
    values = {
        **{"0": shard.name, "bytes-1": total - 1, "bytes": total, "last": len(rows) - 1},
        **{"key": rows[-1].key, "offset": rows[-1].offset, "first": rows[0].key},
        **{"size": size, "width": rows[0].image_width},
    }
    for name, value in values.items():
        said = [line.replace(f"{{{name}}}", str(value)) for line in said]
    plant(out)
    printed = sorted(lines(out, deep=True))
    assert len(printed) == len(said), printed
    for line, wanted in zip(printed, sorted(said), strict=True):
        assert line.startswith(wanted), (line, wanted)


def test_a_data_set_without_its_manifest(out: Path) -> None:
    """Its shards are intact. A newer format is not damage."""
    edit(out / "manifest.json", lambda m: m.update(format_version=99))
    with pytest.raises(RuntimeError, match=r"E-OUT-FOREIGN .* upgrade beam-tfrec"):
        verify(VerifyConfig((str(out),)))
    (out / "manifest.json").unlink()
    what = "is missing, but _plan.json exists: the data set is not complete"
    remedy = "run its command again, or restore it from a copy"
    assert lines(out)[0] == f"E-VER-MISSING OUT/manifest.json: {what}; {remedy}"


def test_wrong_orders_and_repeated_keys_are_found(out: Path) -> None:
    """Shuffled splits are compared across shards, others within each shard."""
    edit(out / "manifest.json", lambda m: m["plan"]["options"].update(seed="7"))
    assert any(": by seed 7 it comes before '" in line for line in lines(out))
    edit(out / "manifest.json", lambda m: m["plan"]["options"].update(order="all=input", seed="0"))
    one, other = sorted((out / "index").glob("train-*.parquet"))
    shutil.copy(one, other)
    edit_rows(out, lambda rows: [msgspec.structs.replace(row, key="7") for row in rows])
    twice = [line for line in lines(out) if "twice" in line]
    assert twice == [f"E-VER-ORDER {INDEX}: key '7' occurs twice; {RESTORE}"]
    edit(out / "manifest.json", lambda m: m["plan"]["options"].update(order="all=shuffled"))
    shutil.copy(one, other)
    orders = [line for line in lines(out) if line.startswith("E-VER-ORDER")]
    assert any(line.startswith("E-VER-ORDER train-00001-of-00002") for line in orders)


def test_sources_are_hashed(whole: Path, out: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(whole / "images", images)
    both = {"": (str(images),)}
    assert lines(out, sources=both) == ["10 source files compared with the index"]
    flip(images / "a000.jpg", 100)
    (images / "a001.jpg").unlink()
    with (images / "a002.jpg").open("ab") as file:
        file.write(b"\0")
    *printed, note = lines(out, sources={"val": (str(images),)}, workers=2)
    assert note == "5 source files compared with the index"
    for line, what in zip(sorted(printed), ("SHA-256", "is missing", "bytes"), strict=True):
        assert re.match(rf"E-VER-SOURCE {images}/a00\d.jpg \(of key '\d' in val\): .*{what}", line)
    # A second root that has them.
    assert lines(out, sources={"val": (str(images), str(whole / "images"))}) == [
        "5 source files compared with the index"
    ]


def test_sources_that_cannot_be_compared_are_refused(out: Path) -> None:
    one = str(out)
    what = f"sources must be folders of images, got the data set '{one}': run beam-tfrec diff {one}"
    with pytest.raises(ValueError, match=re.escape(what)):
        verify(VerifyConfig((one,), sources={"": (one,)}))
    with pytest.raises(ValueError, match="sources must be of splits train, val, got 'test'"):
        verify(VerifyConfig((one,), sources={"test": (one,)}))
    edit(out / "manifest.json", lambda m: m.update(layout="arrays"))
    with pytest.raises(ValueError, match="sources must be whole files, got parts of files"):
        verify(VerifyConfig((one,), sources={"": (one,)}))
