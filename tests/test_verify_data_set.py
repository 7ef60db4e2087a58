"""Planted faults of a data set, each named by `verify`; and what it says of whole ones."""

import datetime
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

import readers
from pipelines.show import ShowConfig, show
from pipelines.verify import VerifyConfig, verify
from schemas.documents.seals import BLANK_SEAL, sealed
from schemas.faults import RejectBudget
from schemas.manifest import JobPlan, from_json, plan_digest
from schemas.shards import file_sum
from tests.small_runs import build_run, plan_run, write_set
from transforms.earlier import Since, find_earlier_sets
from transforms.find_duplicates import duplicates_jsonl, find_duplicates
from transforms.shard_index import index_from_parquet, index_to_parquet

RESTORE = "restore it from a copy, or delete it and manifest.json and run the command again"
INDEX = "restore the index from a copy, or delete it and manifest.json and run again"
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


def lines(out: Path, capsys: pytest.CaptureFixture[str], **config: object) -> list[str]:
    """Return what verify prints but for its last line, and see to it that both agree."""
    found = verify(VerifyConfig((str(out),), **config))
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].endswith("all is well") is not found
    return [line.replace(str(out), "OUT") for line in printed[:-1]]


def edit(path: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def rows_moved(path: Path) -> None:
    rows = index_from_parquet(path.read_bytes())
    path.write_bytes(index_to_parquet(rows[::-1]))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_whole_data_set(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(out, capsys) == []
    assert lines(out, capsys, deep=True, workers=3) == []


OF_THE_USER = ("README.md", "croissant.json", "report.html")
KINDS = (
    *("manifest.json", "_plan.json", "label_map.pbtxt", "rejected.jsonl", "duplicates.jsonl"),
    *("features.json", "dataset_info.json", "schema.pbtxt", *OF_THE_USER, "_sources/*.json"),
    *("_receipts/*.json", "index/*.parquet", "index/*.idx", "*.tfrec"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_of_any_file_is_found(
    kind: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In documents, which users may edit, it is a note."""
    note_shared_contents(out)
    page = sealed(f"<!-- {BLANK_SEAL} --><p>report</p>")
    (out / "report.html").write_text(page)
    assert lines(out, capsys) == []
    path = min(out.glob(kind))
    data = path.read_bytes()
    step = max(1, 8 * len(data) // 25) | 1
    for bit in range(0, 8 * len(data), step):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = verify(VerifyConfig((str(out),)))
        except RuntimeError as error:  # of a manifest: another program's, or a later one's
            assert str(error).startswith("E-OUT-FOREIGN"), bit
            continue
        printed = capsys.readouterr().out.splitlines()[:-1]
        assert found is (kind not in OF_THE_USER), (bit, printed)
        assert printed, bit
        if not found:
            assert printed == [f"{kind} is not as {'a' if kind[0] == 'r' else 'the'} run wrote it"]


def as_format_2(out: Path) -> None:
    """Take away what format version 3 added."""

    def change(manifest: dict) -> None:
        manifest["format_version"] = manifest["plan"]["format_version"] = 2
        del manifest["files"]
        for entry in manifest["shards"]:
            del entry["receipt"]

    edit(out / "manifest.json", change)
    edit(out / "_plan.json", lambda plan: plan.update(format_version=2))
    digest = plan_digest(from_json((out / "_plan.json").read_bytes(), JobPlan))
    for path in (out / "_receipts").iterdir():
        edit(path, lambda receipt: receipt.update(plan=digest))
    for path in (out / "index").glob("*.parquet"):
        pq.write_table(pq.read_table(path).replace_schema_metadata(), path)


def test_a_data_set_of_format_2_is_read(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_format_2(out)
    assert lines(out, capsys, deep=True) == []
    assert len(list(readers.open(str(out), "train"))) == 5
    assert any("image/encoded" in line for line in show(ShowConfig(str(out), limit=1)))
    since = Since([str(out)], datetime.date(2026, 11, 20))
    assert len(find_earlier_sets(since, "/nowhere/out", "detection").sets) == 1


def test_a_sum_that_the_manifest_lacks(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(manifest: dict) -> None:
        del manifest["files"]["rejected.jsonl"], manifest["shards"][0]["receipt"]
        manifest["files"]["../notes.txt"] = {"bytes": 1, "crc32c": "00000000"}

    edit(out / "manifest.json", change)
    assert lines(out, capsys) == [
        f"E-VER-MANIFEST manifest.json: has no sum of rejected.jsonl; {COPY}",
        f"E-VER-MANIFEST manifest.json: has a sum of ../notes.txt, which no run writes; {COPY}",
        "E-VER-CRC _receipts/train-00000-of-00002.json: its size or CRC-32C is not the manifest's;"
        f" {RESTORE}",
    ]


def shards(out: Path) -> list[Path]:
    return sorted(out.glob("train-*.tfrec"))


TOOLS = ("dataset_info.json", "schema.pbtxt", "features.json")
SMALL = ("_plan.json", "rejected.jsonl", "index/train-00000-of-00002-2.parquet")
FAULTS = {
    "a shard is gone": (
        lambda out: shards(out)[0].unlink(),
        ["E-VER-MISSING OUT/{0}: is not there; " + RESTORE],
    ),
    "a folder in its place": (
        lambda out: (shards(out)[0].unlink(), (out / names[0]).mkdir()),
        ["E-VER-MISSING OUT/{0}: is a directory; " + RESTORE],
    ),
    "a shard is cut off": (
        lambda out: shards(out)[0].write_bytes(shards(out)[0].read_bytes()[:-1]),
        [
            "E-VER-SIZE OUT/{0}: has {bytes-1} bytes, the manifest says {bytes}; " + RESTORE,
            "E-VER-FRAME {0} record {last} (key '{key}') at byte {offset}: a record of {size} bytes"
            " is cut off: {size+3} bytes are left for it and its checksum; the last {size+15} bytes"
            " of the file were not read; " + RESTORE,
        ],
    ),
    "a stray shard of an older run": (
        lambda out: (out / "train-00000-of-00004-9.tfrec").touch(),
        [
            "E-VER-FOREIGN train-00000-of-00004-9.tfrec: is called like a shard, and the manifest"
            " names no such shard; move it away: no reader of the manifest sees it, a reader of a"
            " glob does"
        ],
    ),
    "a stray index": (
        lambda out: (out / "index/train-00000-of-00004.idx").touch(),
        [
            "E-VER-FOREIGN index/train-00000-of-00004.idx: is of an index, and the manifest names"
            " no such shard; move it away: no reader of the manifest sees it, a reader of a glob"
            " does"
        ],
    ),
    "a stray receipt": (
        lambda out: (out / "_receipts/train-00000-of-00004.json").touch(),
        [
            "E-VER-FOREIGN _receipts/train-00000-of-00004.json: is a receipt, and the manifest"
            " names no such shard; move it away: no reader of the manifest sees it, a reader of a"
            " glob does"
        ],
    ),
    "a description of features is another's": (
        lambda out: edit(out / "features.json", lambda found: found.update(proto3Json=[])),
        ["E-VER-MANIFEST features.json: is not what follows from the manifest; " + RESTORE],
    ),
    "a description of features is none": (
        lambda out: (out / "features.json").write_bytes(b"[" * 100_000),
        ["E-VER-MANIFEST features.json: is not what follows from the manifest; " + RESTORE],
    ),
    "counts of TFDS are edited": (
        lambda out: edit(out / "dataset_info.json", lambda info: info["splits"].pop()),
        ["E-VER-MANIFEST dataset_info.json: is not what follows from the manifest; " + RESTORE],
    ),
    "a schema is cut off": (
        lambda out: (out / "schema.pbtxt").write_bytes((out / "schema.pbtxt").read_bytes()[:-2]),
        ["E-VER-MANIFEST schema.pbtxt: is not what follows from the manifest; " + RESTORE],
    ),
    "side files are gone": (
        lambda out: [(out / name).unlink() for name in TOOLS],
        [f"E-VER-MISSING {name}: is not there; " + RESTORE for name in TOOLS],
    ),
    "folders in place of small files": (
        lambda out: [((out / name).unlink(), (out / name).mkdir()) for name in SMALL],
        [f"E-VER-MISSING {name}: is a directory; " for name in SMALL],
    ),
    "documents are edited, or gone": (
        lambda out: ((out / "README.md").write_text("mine"), (out / "croissant.json").unlink()),
        ["README.md is not as the run wrote it", "croissant.json is gone"],
    ),
    "a user's own file": (lambda out: (out / "notes.txt").touch(), []),
    "an index is gone": (
        lambda out: (out / "index/train-00000-of-00002-2.parquet").unlink(),
        ["E-VER-MISSING index/train-00000-of-00002-2.parquet: is not there; " + RESTORE],
    ),
    "an index in text is another's": (
        lambda out: shutil.copy(
            out / "index/train-00001-of-00002-3.idx", out / "index/train-00000-of-00002-2.idx"
        ),
        [
            "E-VER-INDEX index/train-00000-of-00002-2.idx: is not the text form of"
            " index/train-00000-of-00002-2.parquet; " + INDEX
        ],
    ),
    "an index is none": (
        lambda out: (out / "index/train-00000-of-00002-2.parquet").write_bytes(b"PAR1 is none"),
        ["E-VER-INDEX index/train-00000-of-00002-2.parquet: index must be a Parquet file"],
    ),
    "rows in another order": (
        lambda out: rows_moved(out / "index/train-00000-of-00002-2.parquet"),
        [
            "E-VER-INDEX index/train-00000-of-00002-2.idx: is not the text form",
            "E-VER-INDEX index/train-00000-of-00002-2.parquet record 0",
            "E-VER-ORDER {0} record 1",
        ],
    ),
    "a receipt is gone": (
        lambda out: (out / "_receipts/train-00000-of-00002.json").unlink(),
        ["E-VER-MISSING _receipts/train-00000-of-00002.json: is not there; " + RESTORE],
    ),
    "a receipt says otherwise": (
        lambda out: edit(
            out / "_receipts/train-00000-of-00002.json", lambda info: info.update(planned=7)
        ),
        [
            "E-VER-MANIFEST _receipts/train-00000-of-00002.json: planned is 7, the manifest says 3;"
            " " + RESTORE
        ],
    ),
    "a receipt is none": (
        lambda out: (out / "_receipts/train-00000-of-00002.json").write_bytes(b"{"),
        ["E-VER-MANIFEST _receipts/train-00000-of-00002.json: no receipt (Input data"],
    ),
    "another plan": (
        lambda out: edit(out / "_plan.json", lambda plan: plan.update(samples="0" * 64)),
        ["E-VER-MANIFEST _plan.json: is not the plan of the manifest; " + RESTORE],
    ),
    "another label map": (
        lambda out: (out / "label_map.pbtxt").write_bytes(b""),
        ["E-VER-MANIFEST label_map.pbtxt: is not that of the labels in the manifest; " + COPY],
    ),
    "a reject is lost": (
        lambda out: (out / "rejected.jsonl").write_bytes(
            (out / "rejected.jsonl").read_bytes().splitlines(keepends=True)[1]
        ),
        [
            "E-VER-MANIFEST rejected.jsonl: 0 of each sample rejected as E-IMG-TYPE in split train,"
            " the manifest says 1; " + COPY
        ],
    ),
    "a line that is no reject": (
        lambda out: (out / "rejected.jsonl").write_bytes(
            (out / "rejected.jsonl").read_bytes() + b"\n"
        ),
        ["E-VER-MANIFEST rejected.jsonl line 3: no reject (Input data was truncated); " + COPY],
    ),
    "sums do not hold": (
        lambda out: edit(out / "manifest.json", lambda m: m["splits"]["train"].update(records=6)),
        [
            "E-VER-MANIFEST manifest.json: records of split train are 5 by its entries, 6 by its"
            " sums; " + COPY,
            "E-VER-MANIFEST manifest.json: rejects of shards of split train are 0 by its entries, 1"
            " by its sums; " + COPY,
        ],
    ),
    "fates do not add up": (
        lambda out: edit(out / "manifest.json", lambda m: m["splits"]["train"].update(listed=7)),
        [
            "E-VER-MANIFEST manifest.json: listed samples of split train are 6 by its entries, 7 by"
            " its sums; " + COPY
        ],
    ),
    "no order at all": (
        lambda out: edit(
            out / "manifest.json", lambda m: m["plan"]["options"].update(order="all=backwards")
        ),
        [
            "E-VER-MANIFEST manifest.json: says what no run of this program does ('backwards' is"
            " not a valid Order); " + COPY
        ],
    ),
    "no seed at all": (
        lambda out: edit(out / "manifest.json", lambda m: m["plan"]["options"].update(seed="x")),
        ["E-VER-MANIFEST manifest.json: says what no run of this program does ("],
    ),
    "no kind at all": (
        lambda out: edit(out / "manifest.json", lambda m: m["features"][0].update(kind="double")),
        ["E-VER-MANIFEST manifest.json: says what no run of this program does ("],
    ),
    "a manifest that is none": (
        lambda out: (out / "manifest.json").write_bytes(b"{"),
        ["E-VER-MANIFEST OUT/manifest.json: no manifest (Input data was truncated); " + COPY],
    ),
    "another hash in the manifest": (
        lambda out: edit(out / "manifest.json", lambda m: m["shards"][0].update(crc32c="0" * 8)),
        [
            "E-VER-MANIFEST _receipts/train-00000-of-00002.json: crc32c is",
            "E-VER-CRC {0}: the file's CRC-32C is",
        ],
    ),
}
names: list[str] = []


@pytest.mark.parametrize(("plant", "said"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_named(
    plant: Callable[[Path], object],
    said: list[str],
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names[:] = [path.name for path in shards(out)]
    values = filled(out)
    plant(out)
    printed = lines(out, capsys)
    expected = [values(line) for line in said]
    assert len(printed) == len(expected), printed
    for line, wanted in zip(printed, expected, strict=True):
        assert line.startswith(wanted), (line, wanted)


def test_shared_contents(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, wrong = out / "duplicates.jsonl", "E-VER-MANIFEST duplicates.jsonl"
    whole = [b'{"sha256":"%d","records":{"val":1,"train":2},"samples":{}}\n' % n for n in range(3)]
    pair = {"splits": ["train", "val"], "contents": 3, "sha256": "0", "names": ["a", "b"]}
    edit(out / "manifest.json", lambda m: m.update(duplicates=[pair]))
    assert lines(out, capsys) == [f"E-VER-MISSING duplicates.jsonl: is not there; {COPY}"]
    path.write_bytes(b"".join(whole))
    assert lines(out, capsys) == []
    for found in (whole[1:], [*whole, whole[0]]):
        path.write_bytes(b"".join(found))
        what = f"{len(found)} contents that train and val share, the manifest says 3"
        assert lines(out, capsys) == [f"{wrong}: {what}; {COPY}"]
    path.write_bytes(b"".join([*whole, b"{}\n"]))
    (line,) = lines(out, capsys)
    assert line.startswith(f"{wrong} line 4: no shared content (")


def note_shared_contents(out: Path) -> None:
    """Have the data set tell of what its splits share, as a run of a pipeline does."""
    records = [
        (split, bytes.fromhex(row.sources[0].sha256), row.sources[0].name, row.key)
        for split in ("train", "val")
        for path in sorted((out / "index").glob(f"{split}-*.parquet"))
        for row in index_from_parquet(path.read_bytes())
    ]
    found = find_duplicates(records)
    pairs = msgspec.to_builtins(found.pairs)
    edit(out / "manifest.json", lambda m: m.update(duplicates=pairs))
    write_with_sum(out, "duplicates.jsonl", duplicates_jsonl(found.lines))


def write_with_sum(out: Path, name: str, data: bytes) -> None:
    """Write a file, and its sum into the manifest."""
    (out / name).write_bytes(data)
    written = msgspec.to_builtins(file_sum(data))
    edit(out / "manifest.json", lambda m: m["files"].update({name: written}))


SHARED_LINES = {
    "a count": (
        (b'"records":{"train":1', b'"records":{"train":2'),
        "2 records of split train, the indexes have 1",
    ),
    "a content": ((b'{"sha256":"', b'{"sha256":"f'), "1 records of split train, the indexes have"),
    "a key": ((b'"key":"', b'"key":"9'), "names 1 records of split train, of which 0 are in it"),
    "a name": ((b'"name":"', b'"name":"9'), "names 1 records of split train, of which 0 are in it"),
}


@pytest.mark.parametrize(("change", "said"), SHARED_LINES.values(), ids=SHARED_LINES)
def test_shared_contents_are_looked_for_in_the_indexes(
    change: tuple[bytes, bytes], said: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_shared_contents(out)
    path = out / "duplicates.jsonl"
    assert len(path.read_bytes().splitlines()) == 5
    assert lines(out, capsys, deep=True) == []
    write_with_sum(out, path.name, path.read_bytes().replace(*change, 1))
    assert lines(out, capsys) == []
    printed = lines(out, capsys, deep=True)
    assert printed[0].startswith(f"E-VER-MANIFEST duplicates.jsonl line 1: {said}")


def test_records_that_were_taken_out_or_put_in(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sorted(out.glob("val-*.tfrec"))[-1]
    first, second = index_from_parquet((out / "index/val-00001-of-00002-2.parquet").read_bytes())
    data = path.read_bytes()
    assert first.size != second.size
    end, one = len(data), f"{path.name} record 0 (key {first.key!r}) at byte 0"
    at_second = f"{path.name} record 1 (key {second.key!r}) at byte {second.offset}"
    none_begins = "no record begins where the index says"
    table = {
        data[first.size :]: [
            f"E-VER-INDEX {one}: the index says {first.size} bytes, its frame has {second.size}",
            f"E-VER-FRAME {at_second}: {none_begins}",
        ],
        data[: second.offset]: [
            f"E-VER-FRAME {at_second}: {none_begins}",
        ],
        data + data[second.offset :]: [
            f"E-VER-INDEX {path.name} record 2 at byte {end}: the index has no such record, its"
            f" frame has {second.size}",
            f"E-VER-FRAME {path.name}: 3 records, the manifest says 2",
        ],
    }
    for changed, wanted in table.items():
        path.write_bytes(changed)
        size, *found = lines(out, capsys)
        assert size.startswith(f"E-VER-SIZE OUT/{path.name}: has {len(changed)} bytes")
        assert [line.partition(";")[0] for line in found] == wanted


def test_labels_are_compared_with_the_records_own(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = out / "index/train-00000-of-00002-2.parquet"
    rows = index_from_parquet(path.read_bytes())
    first = msgspec.structs.replace(rows[0], labels=[*rows[0].labels, 1])
    path.write_bytes(index_to_parquet([first, *rows[1:]]))
    assert lines(out, capsys) == [
        f"E-VER-EXAMPLE {shards(out)[0].name} record 0 (key {first.key!r}) at byte 0: feature"
        " 'image/object/class/label' has the labels"
        f" [{' '.join(map(str, rows[0].labels))}], the index says"
        f" [{' '.join(map(str, first.labels))}]; {RESTORE}"
    ]


def test_image_sizes_are_compared_with_the_records_own(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = out / "index/train-00000-of-00002-2.parquet"
    rows = index_from_parquet(path.read_bytes())
    path.write_bytes(index_to_parquet([msgspec.structs.replace(rows[0], image_width=7), *rows[1:]]))
    assert lines(out, capsys) == [
        f"E-VER-EXAMPLE {shards(out)[0].name} record 0 (key {rows[0].key!r}) at byte 0: feature"
        f" 'image/width' is [{rows[0].image_width}], the index says 7; {RESTORE}"
    ]


def test_a_folder_without_records_is_told_so(tmp_path: Path) -> None:
    what = "holds no manifest.json or TFRecord files (.tfrec, .tfrecord, .tfrecords)"
    for path in (f"{tmp_path}", f"{tmp_path}/"):
        with pytest.raises(RuntimeError, match=re.escape(f"E-ARG {path}: {what}")):
            verify(VerifyConfig((path,)))


def test_rows_have_no_source_files(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (out / "index").glob("*.parquet"):
        rows = index_from_parquet(path.read_bytes())
        path.write_bytes(index_to_parquet([msgspec.structs.replace(r, sources=[]) for r in rows]))
    assert lines(out, capsys, sources={"": (str(tmp_path),)}) == [
        "no source file was compared: the index names none, as of rows and of no records"
    ]


def test_a_data_set_without_its_manifest(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its shards alone may all be well."""
    (out / "manifest.json").unlink()
    what = "is not there, and _plan.json is: the data set is not complete"
    remedy = "run its command again, or restore it from a copy"
    assert lines(out, capsys)[0] == f"E-VER-MISSING OUT/manifest.json: {what}; {remedy}"
    for path in out.glob("*.tfrec"):
        path.unlink()
    assert lines(out, capsys) == [f"E-VER-MISSING OUT/manifest.json: {what}; {remedy}"]
    (out / "_plan.json").unlink()
    what = what.replace("_plan.json is", "_receipts are")
    assert lines(out, capsys) == [f"E-VER-MISSING OUT/manifest.json: {what}; {remedy}"]


def test_what_a_folder_calls_records_and_nobody_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.tfrecord").touch()
    (tmp_path / "b.tfrecord").symlink_to("nowhere")
    os.mkfifo(tmp_path / "c.tfrecord")
    kinds = {"b": "dangling link", "c": "fifo"}
    assert lines(tmp_path, capsys) == [
        f"E-VER-MISSING OUT/{name}.tfrecord: is a {kind}, and not read; mend or rename it, or take"
        " it out of the folder"
        for name, kind in kinds.items()
    ]


@pytest.mark.parametrize(
    "change",
    [lambda m: m["plan"]["labels"][0].update(id=2**40), lambda m: m["shards"].clear()],
    ids=["label", "shards"],
)
def test_what_no_side_file_can_say(
    change: Callable[[dict], None], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(out / "manifest.json", change)
    what = "E-VER-MANIFEST manifest.json: has labels, features or shards that no run writes ("
    assert any(line.startswith(what) for line in lines(out, capsys))


def filled(out: Path) -> Callable[[str], str]:
    """Return what fills in the names and numbers of the first shard."""
    data = (out / "index/train-00000-of-00002-2.parquet").read_bytes()
    rows, shard = index_from_parquet(data), shards(out)[0]
    size, total = rows[-1].size - 16, shard.stat().st_size
    values = {
        "0": shard.name,
        "bytes-1": total - 1,
        "bytes": total,
        "last": len(rows) - 1,
        "key": rows[-1].key,
        "offset": rows[-1].offset,
        "size": size,
        "size+3": size + 3,
        "size+15": size + 15,
    }

    def fill(line: str) -> str:
        for name, value in values.items():
            line = line.replace(f"{{{name}}}", str(value))
        return line

    return fill


def test_the_order_across_shards(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another seed in the plan: the shards are in no order by it, and each is said to be."""
    edit(out / "manifest.json", lambda m: m["plan"]["options"].update(seed="7"))
    printed = lines(out, capsys)
    assert any(line.startswith("E-VER-ORDER ") for line in printed)
    assert any(": by seed 7 it comes before the one of key " in line for line in printed)


@pytest.mark.parametrize("order", ["shuffled", "input"])
def test_a_key_that_comes_twice(order: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(out / "manifest.json", lambda m: m["plan"]["options"].update(order=f"all={order}"))
    one, other = sorted((out / "index").glob("train-*.parquet"))
    shutil.copy(one, other)
    shutil.copy(one.with_suffix(".idx"), other.with_suffix(".idx"))
    twice = [line for line in lines(out, capsys) if "twice" in line or " by seed " in line]
    assert twice and all(line.startswith("E-VER-ORDER train-00001-of-00002") for line in twice)


def test_deep_compares_sha256(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(out / "manifest.json", lambda m: m["shards"][0].update(sha256="0" * 64))
    receipt, *others = lines(out, capsys)
    assert receipt.startswith("E-VER-MANIFEST _receipts/train-00000-of-00002.json: sha256 is")
    assert not others
    deep = lines(out, capsys, deep=True)
    assert deep[0] == receipt
    assert [line.partition(" is ")[0] for line in deep[1:]] == [
        f"E-VER-CRC {shards(out)[0].name}: the file's SHA-256"
    ]


def test_a_newer_format_is_no_damage(out: Path) -> None:
    edit(out / "manifest.json", lambda m: m.update(format_version=99))
    with pytest.raises(RuntimeError, match=r"E-OUT-FOREIGN .* upgrade beam-tfrec"):
        verify(VerifyConfig((str(out),)))


def test_sources_are_hashed(
    whole: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"
    shutil.copytree(whole / "images", images)
    both = {"": (str(images),)}
    assert lines(out, capsys, sources=both) == ["10 source files compared with the index"]
    flip(images / "a000.jpg", 100)
    (images / "a001.jpg").unlink()
    with (images / "a002.jpg").open("ab") as file:
        file.write(b"\0")
    printed = lines(out, capsys, sources={"val": (str(images),)}, workers=2)
    assert printed[-1] == "5 source files compared with the index"
    said = {line.split(":")[0]: line.partition(": ")[2] for line in printed[:-1]}
    where = f"E-VER-SOURCE {images}/a00{{}}.jpg (of key '{{}}' in val)"
    assert said.keys() == {where.format(n, n + 1) for n in range(3)}
    assert said[where.format(0, 1)].startswith("has the SHA-256 ")
    assert (
        said[where.format(1, 2)]
        == "is not there; restore it from a copy, or make the data set again"
    )
    assert said[where.format(2, 3)].startswith("has ")
    # A second root that has them.
    assert lines(out, capsys, sources={"val": (str(images), str(whole / "images"))}) == [
        "5 source files compared with the index"
    ]


def test_sources_of_a_split_that_is_none(out: Path) -> None:
    with pytest.raises(ValueError, match="sources must be of splits train, val, got 'test'"):
        verify(VerifyConfig((str(out),), sources={"test": (str(out),)}))


def test_sources_of_a_damaged_manifest(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out / "manifest.json").write_bytes(b"{")
    (line,) = lines(out, capsys, sources={"": (str(out),)})
    assert line.startswith("E-VER-MANIFEST OUT/manifest.json: no manifest")


def test_items_of_arrays_have_no_sources_of_their_own(out: Path) -> None:
    edit(out / "manifest.json", lambda m: m.update(layout="arrays"))
    with pytest.raises(ValueError, match="sources must be files of their own, got items of arrays"):
        verify(VerifyConfig((str(out),), sources={"": (str(out),)}))


def test_sources_come_with_one_data_set(out: Path) -> None:
    with pytest.raises(ValueError, match="sources must come with one data set, got 2"):
        verify(VerifyConfig((str(out), str(out)), sources={"": (str(out),)}))


def test_workers_must_be_some() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        VerifyConfig(("out",), workers=0)
