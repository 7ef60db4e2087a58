"""The report: its contents, its command, and after a commit, where it never fails a run."""

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from beam_tfrec.pipelines.report import run as run_report
from beam_tfrec.schemas.documents.data_card import is_sealed
from beam_tfrec.schemas.tensors import encode_tensor
from beam_tfrec.schemas.tfrecord import frame_record
from beam_tfrec.transforms.report import Outline, Report, gather
from beam_tfrec.transforms.report import page as page_module
from beam_tfrec.transforms.report.gather import IndexSums, make_report, pick_records
from beam_tfrec.transforms.report.gather_files import report_of_files
from beam_tfrec.transforms.report.page import render_page, write_report
from beam_tfrec.transforms.shard_index import IndexRow, table_of_rows
from beam_tfrec.transforms.storage import Access
from tests.coco_command import (
    MakeCoco,
    Run,
    check_committed,
    command,
    run_coco,
    run_pipeline,
    snapshot,
)
from tests.conftest import jpeg_bytes
from tests.report_contents import NO_COUNTS
from tests.small_runs import build_run, plan_run, write_set
from tests.test_verify_files import example

ACCESS = Access()


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set of two splits, with rejected samples and dropped annotations."""
    folder = tmp_path_factory.mktemp("report")
    sources = {"train": write_set(folder / "train", 12), "val": write_set(folder / "val", 5)}
    for images, annotations in sources.values():
        photo = images / "a002.jpg"
        photo.write_bytes(photo.read_bytes()[:-10])
        spec = json.loads(annotations.read_bytes())
        spec["annotations"][3]["bbox"] = [64, 0, 5, 5]  # outside
        annotations.write_text(json.dumps(spec))
    run = run_coco(
        *("--images", *(f"{split}={images}" for split, (images, _) in sources.items())),
        *("--annotations", *(f"{split}={file}" for split, (_, file) in sources.items())),
        *("--output", folder / "out", "--max_rejected", 2, "--num_shards", "train=3", "val=1"),
        "--no_report",
    )
    assert run.code == 0, run.err
    return folder / "out"


@pytest.fixture
def out(data_set: Path, tmp_path: Path) -> Path:
    """Return a copy of the data set, to be damaged."""
    return Path(shutil.copytree(data_set, tmp_path / "out"))


@pytest.fixture(scope="module")
def report(data_set: Path) -> Report:
    return make_report(str(data_set), ACCESS)


def test_a_report_agrees_with_manifest_and_indexes(report: Report, data_set: Path) -> None:
    manifest = json.loads((data_set / "manifest.json").read_bytes())
    train, val = report.splits
    assert (report.title, train.name, val.name) == ("out", "train", "val")
    for split in report.splits:
        assert msgspec.to_builtins(split.summary) == manifest["splits"][split.name]
    assert train.histograms["image_width"] == {64: 11}
    assert train.histograms["image_height"] == {48: 11}
    assert train.histograms["objects"] == {2: 10, 1: 1}
    assert sum(train.histograms["record_bytes"].values()) == 11
    assert train.class_objects == train.class_records == {1: 11, 2: 10}
    assert report.class_names == {1: "person", 2: "crowd of people"}
    assert dict(report.options) == manifest["plan"]["options"]
    assert [row[0] for row in report.features] == [f["key"] for f in manifest["features"]]
    assert sorted(found.code for found in report.rejects) == ["E-BOX-OUTSIDE", "E-IMG-TRUNCATED"]
    assert report.notes == []


def test_all_records_of_a_small_data_set_are_shown(report: Report, data_set: Path) -> None:
    assert len({shown.record[:1] + shown.record[5:] for shown in report.pictures}) == 15
    outline = report.pictures[0].outlines[0]
    assert (outline.label, outline.text) == (1, "person")
    assert outline.box == pytest.approx((1.5 / 64, 2 / 48, 10 / 64, 12.25 / 48))
    assert str(data_set.parent).encode() not in render_page(report)


# --- damage becomes a note ---


@pytest.mark.parametrize("how", ["flipped", "gone", "cut", "folder"])
def test_a_damaged_shard_becomes_a_note(how: str, out: Path, report: Report) -> None:
    shard = sorted(out.glob("train-*.tfrec"))[0]
    data = bytearray(shard.read_bytes())
    data[200] ^= 1
    shard.unlink()
    if how == "folder":
        shard.mkdir()
    elif how != "gone":
        shard.write_bytes(data if how == "flipped" else bytes(len(data) // 2))
    found = make_report(str(out), ACCESS)
    assert found.splits == report.splits
    assert all("is not shown: " in note for note in found.notes)
    assert len(found.notes) + len(found.pictures) == 15 > len(found.pictures)
    if how == "flipped":
        (note,) = found.notes
        assert note.startswith(f"{shard.name} record 0 (key ")


@pytest.mark.parametrize("data", [None, b"", b"no index"])
def test_an_unreadable_index_becomes_a_note(data: bytes | None, out: Path) -> None:
    index = sorted(out.glob("index/val-*.parquet"))[0]
    index.unlink()
    if data is not None:
        index.write_bytes(data)
    found = make_report(str(out), ACCESS)
    assert found.splits[1].summary.records == 4 and found.splits[1].class_records == {}
    assert len(found.pictures) == 11
    (note,) = found.notes
    assert note.startswith("not counted: val-00000-of-00001-4.tfrec: ")


# --- sums over indexes ---


def test_records_shown_are_spread_and_cover_classes() -> None:
    """Of a long tail of classes, the most frequent and the rarest are shown."""
    sums = IndexSums("train", msgspec.structs.replace(NO_COUNTS, shards=10))
    for place in range(10):
        labels = [n * n // 100 for n in range(place, 1000, 10)]
        rows = [IndexRow(str(n), 100 * n, 100, [], [label]) for n, label in enumerate(labels)]
        sums.add(place, f"{place}", table_of_rows(rows))
    picked = pick_records([sums], 72)
    assert 60 < len(picked) == len(set(picked)) <= 72
    assert {record.file for record in picked[:24]} == {str(n) for n in range(10)}
    numbers = [int(record.file) + 10 * record.number for record in picked]
    assert {0, 9980} <= {n * n // 100 for n in numbers}  # the most frequent and the rarest class
    assert pick_records([sums], 72) == picked


# --- files of other programs ---


def record(**values: Sequence) -> bytes:
    return b"".join(frame_record([example(**values)]))


def classified(label: int) -> bytes:
    return record(**{"image": [jpeg_bytes(color=label)], "class": [label]})


def test_other_files_are_counted_and_shown(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.tfrecord", tmp_path / "b.tfrecord.gz"
    plain.write_bytes(b"".join(classified(n % 3) for n in range(10)))
    packed.write_bytes(gzip.compress(b"".join(classified(7) for _ in range(4))))
    report = report_of_files([str(plain), str(packed)], ACCESS, ["a note before"])
    (split,) = report.splits
    assert (report.title, split.name, report.layout) == ("a.tfrecord and 1 other", "", "")
    assert (split.summary.records, split.summary.shards) == (14, 2)
    assert split.summary.bytes == plain.stat().st_size + packed.stat().st_size
    assert split.class_records == {0: 4, 1: 3, 2: 3, 7: 4}
    assert split.histograms["image_width"] == {64: 14} and "objects" in split.histograms
    places = {(p.record.file, p.record.number) for p in report.pictures}
    assert places == {("a.tfrecord", n) for n in range(10)}
    assert report.features == [("class", "int64", "", ""), ("image", "bytes", "", "")]
    assert report.notes == [
        "a note before",
        "b.tfrecord.gz: no pictures, since it is GZIP compressed",
    ]


def test_damage_in_other_files_is_counted(tmp_path: Path) -> None:
    path, packed = tmp_path / "a.tfrecord", tmp_path / "b.tfrecord.gz"
    whole = b"".join(classified(n) for n in range(5))
    odd = [b"no Example", example(image=[jpeg_bytes()[:-40]])]
    path.write_bytes(b"".join(part for found in odd for part in frame_record([found])) + whole[:-7])
    packed.write_bytes(gzip.compress(whole)[:-40])
    report = report_of_files([str(path), str(packed)], ACCESS)
    for note in (
        "a.tfrecord: not counted: 1 damaged record",
        "a.tfrecord: not counted: 1 record without an Example",
        "b.tfrecord.gz: not counted: 1 damaged record",
    ):
        assert note in report.notes
    assert {p.record.number for p in report.pictures} == {2, 3, 4, 5}


BOX = (0.25, 0.25, 0.25, 0.25)
TENSOR = encode_tensor(np.zeros((4, 4, 3), np.uint8))
# More features than an image; the outline and the captions that are shown.
OTHERS: dict[str, tuple[dict[str, Sequence], Outline | None, tuple[str, ...]]] = {
    "the Keras recipe": (
        {"bbox": [16.0, 12.0, 16.0, 12.0], "category_id": [3], "area": [1.0]},
        *(Outline(3, "class 3", BOX), ()),
    ),
    "TFDS": (
        {"objects/bbox": [0.25, 0.25, 0.5, 0.5], "objects/label": [3], "image/filename": [b"a"]},
        *(Outline(3, "class 3", BOX), ()),
    ),
    "PyImageSearch": ({"image": [TENSOR], "class_name": [b"kite"]}, None, ("kite",)),
    "an edge is missing": ({"image/object/bbox/xmin": [0.25]}, None, ()),
}


@pytest.mark.parametrize(("values", "outline", "captions"), OTHERS.values(), ids=OTHERS)
def test_records_of_other_programs_are_drawn(
    values: dict[str, Sequence], outline: Outline | None, captions: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.tfrecord").write_bytes(record(**{"image": [jpeg_bytes()], **values}))
    (picture,) = report_of_files([f"{tmp_path}/a.tfrecord"], ACCESS).pictures
    assert picture.outlines == ((outline,) if outline else ())
    assert picture.captions == captions


def boxed(*names: bytes) -> bytes:
    """Return a record of objects in one place."""
    edges = {"xmin": 0.25, "ymin": 0.25, "xmax": 0.5, "ymax": 0.5}
    boxes = {f"image/object/bbox/{edge}": [at] * len(names) for edge, at in edges.items()}
    text = {"image/object/class/text": names}
    return record(**{"image/encoded": [jpeg_bytes()], **boxes, **text})


def test_classes_without_numbers_are_found_by_name(tmp_path: Path) -> None:
    """They are counted by record and by object."""
    path = tmp_path / "a.tfrecord"
    path.write_bytes(boxed(b"kite", b"kite") + boxed(b"boat", b"kite"))
    report = report_of_files([str(path)], ACCESS)
    assert report.class_names == {0: "kite", 1: "boat"}
    (split,) = report.splits
    assert (split.class_records, split.class_objects) == ({0: 2, 1: 1}, {0: 3, 1: 1})
    assert split.histograms["objects"] == {2: 2}
    outlines = {outline for shown in report.pictures for outline in shown.outlines}
    assert outlines == {Outline(0, "kite", BOX), Outline(1, "boat", BOX)}


def test_an_empty_file_gives_an_empty_report(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    report = report_of_files([str(tmp_path / "a")], ACCESS)
    assert (report.splits[0].summary.records, report.pictures, report.notes) == (0, [], [])
    assert render_page(report)


# --- the command ---


@pytest.fixture(scope="module")
def small_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    build_run(plan_run(*write_set(folder, 4), folder / "out", num_shards=1))
    return folder / "out"


@pytest.fixture
def small(small_set: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_set, tmp_path / "out"))


def run(*arguments: object) -> Run:
    return run_pipeline(run_report, *arguments)


def test_a_report_is_written_and_replaced(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(small)
    ended = run(small)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"report: {small}/report.html (4 records, 4 pictures)\n"
    page = (small / "report.html").read_bytes()
    assert is_sealed(page) and page.count(b"data:image/jpeg;base64,") == 4
    after = snapshot(small)
    del after["report.html"]
    assert after == before
    # Equal data sets have equal reports, however the path is written.
    other = Path(shutil.copytree(small, tmp_path / "other" / small.name))
    monkeypatch.chdir(other)
    (other / "report.html").unlink()
    assert run(small, ".").code == 0
    assert (small / "report.html").read_bytes() == page == (other / "report.html").read_bytes()


@pytest.mark.parametrize("text", ["mine", "edited"])
def test_another_file_is_not_overwritten(text: str, small: Path) -> None:
    page = small / "report.html"
    if text == "edited":
        assert run(small).code == 0
        text = page.read_text() + "edited"
    page.write_text(text)
    for arguments in ([small], [small, "--output", page]):
        ended = run(*arguments)
        assert ended.ended == (5, "E-OUT-CONFLICT")
        assert ended.fault == (
            f"E-OUT-CONFLICT {page}: exists, and is not a report as this program wrote it; give"
            " another --output, or move it away"
        )
        assert page.read_text() == text


def test_files_folders_and_incomplete_data_sets(small: Path, tmp_path: Path) -> None:
    """Shards without a manifest are read like files of other programs."""
    (shard,) = small.glob("*.tfrec")
    shutil.copy(shard, tmp_path / "a.tfrecord")
    (tmp_path / "folder").mkdir()
    shutil.copy(shard, tmp_path / "folder/b.tfrecord-00000-of-00001")
    (small / "manifest.json").unlink()
    page = tmp_path / "page.html"
    ended = run(tmp_path / "a.tfrecord", tmp_path / "folder", small, "--output", page)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"report: {page} (12 records, 12 pictures, 1 note)\n"
    assert b"the data set is not complete" in page.read_bytes()
    shard.unlink()
    for more in ((), ("--output", page)):
        assert run(small, *more).ended == (7, "E-VER-MISSING")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{shard}",), "add --output report.html"),
        (("{small}", "{shard}", "--output", "{page}"), "one data set or of files, got 2"),
        (("{small}", "{small}", "--output", "{page}"), "one data set or of files, got 2"),
        (("{small}/none",), "none: no such file; give a finished"),
        (("{small}/none.tfrecord", "--output", "{page}"), "no such file"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: tuple[str, ...], said: str, small: Path, tmp_path: Path
) -> None:
    (shard,) = small.glob("*.tfrec")
    page = tmp_path / "a.html"
    ended = run(*(text.format(shard=shard, small=small, page=page) for text in arguments))
    assert ended.ended == (2, "E-ARG") and said in ended.fault
    assert not page.exists()


# --- after a commit ---


def test_a_vulnerable_pillow_gets_no_photos(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "version", lambda _: "12.1.0")
    assert write_report(str(small), Access())
    page = (small / "report.html").read_text()
    assert "no pictures: Pillow 12.1.0 has a critical JPEG overflow" in page
    assert "data:image/jpeg" not in page


def test_local_runs_write_the_report_and_restore_a_missing_one(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    """Equal data sets have equal reports."""
    sources, small = make_coco(3), tmp_path / "out"
    ended = run_coco(*command(sources, small))
    assert f"  report: {small}/report.html" in ended.out.splitlines()
    page = (small / "report.html").read_bytes()
    assert is_sealed(page) and len(page) < 5_000_000
    assert page.count(b"data:image/jpeg;base64,") == 3
    check_committed(small)
    whole = snapshot(small)
    (small / "report.html").unlink()
    ended = run_coco(*command(sources, small, "--no_report"))
    assert ended.code == 0 and not (small / "report.html").exists()
    complete = f"already complete: {small}/manifest.json\n"
    assert run_coco(*command(sources, small)).out == f"{complete}report: {small}/report.html\n"
    made = snapshot(small)
    assert made["report.html"][1] == whole["report.html"][1]
    assert {**made, "report.html": whole["report.html"]} == whole  # nothing else was touched
    assert run_coco(*command(sources, small)).out == complete


def test_an_error_is_a_warning(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("a\u202e")

    monkeypatch.setattr(gather, "make_report", fail)
    ended = run_coco(*command(make_coco(3), tmp_path / "out"), "--quiet")
    assert ended.code == 0
    (warning,) = [line for line in ended.err.splitlines() if "no report" in line]
    assert warning.startswith("no report: KeyError('a\\u202e'); the data set is complete")
    assert "report:" not in ended.out
    check_committed(tmp_path / "out")
