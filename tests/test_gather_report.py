"""What a report says of a data set: as its files say, whatever became of some of them."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.example import encode_example_parts
from schemas.faults import Rejected
from schemas.features import Kind
from schemas.statistics import Statistics, add_statistics
from schemas.tfrecord import frame_record
from tests.coco_command import committed, run_coco
from tests.conftest import coco_dict, jpeg_bytes
from tests.turned_images import jpeg_of
from transforms.report.contents import Outline, Report, ShardFacts
from transforms.report.first_rejects import first_rejects
from transforms.report.gather import make_report
from transforms.report.gather_files import report_of_files, short_names
from transforms.report.make_pictures import MAX_JPEG_BYTES, in_order, make_pictures
from transforms.report.pick_samples import MAX_PICTURES, PickedRecord
from transforms.report.read_samples import read_record
from transforms.report.report_file import report_file
from transforms.storage import Access, open_storage

ACCESS = Access()


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set of two splits, with rejected samples and dropped annotations."""
    folder = tmp_path_factory.mktemp("report")
    flags: list[object] = []
    for split, num_images in (("train", 12), ("val", 5)):
        images = folder / split
        images.mkdir()
        spec = coco_dict(num_images)
        spec["annotations"][3]["bbox"] = [64, 0, 5, 5]  # outside
        for place, image in enumerate(spec["images"]):
            data = jpeg_bytes(color=place + num_images)
            (images / image["file_name"]).write_bytes(data[:-10] if place == 2 else data)
        (folder / f"{split}.json").write_text(json.dumps(spec))
        flags += ["--images", f"{split}={images}"]
        flags += ["--annotations", f"{split}={folder / f'{split}.json'}"]
    flags += ["--output", folder / "out", "--max_rejected", 2, "--num_shards", "train=3", "val=1"]
    run = run_coco(*flags, "--no_report")
    assert run.code == 0, run.err
    return folder / "out"


@pytest.fixture
def out(data_set: Path, tmp_path: Path) -> Path:
    """Return a copy of the data set, to be damaged."""
    return Path(shutil.copytree(data_set, tmp_path / "out"))


@pytest.fixture(scope="module")
def report(data_set: Path) -> Report:
    return make_report(str(data_set), ACCESS, scans=False)


def shards_of(out: Path, split: str = "train") -> list[Path]:
    return sorted(out.glob(f"{split}-*.tfrec"))


# --- a data set ---


def test_the_sums_are_the_manifest_s(report: Report) -> None:
    train, val = report.splits
    assert (train.name, val.name) == ("train", "val")
    assert dict(train.sums) == {
        "listed": 12,
        "rejected before planning": 0,
        "planned": 12,
        "rejected in shards": 1,
        "records": 11,
    }
    assert dict(train.annotations) == {
        "listed": 24,
        "dropped": 1,
        "lost with images": 2,
        "written": 21,
    }
    assert train.rejected == [("E-IMG-TRUNCATED", 1)]
    assert train.dropped == [("E-BOX-OUTSIDE", 1)]
    assert (train.statistics.records, val.statistics.records) == (11, 4)
    assert train.statistics.class_objects == {1: 11, 2: 10}
    assert report.class_names == {1: "person", 2: "crowd of people"}
    assert report.notes == []


def test_the_shards_are_the_manifest_s(report: Report, data_set: Path) -> None:
    manifest = json.loads((data_set / "manifest.json").read_bytes())
    told = [
        (shard.file, shard.records, shard.bytes)
        for split in report.splits
        for shard in split.shards
    ]
    assert told == [(s["file"], s["records"], s["bytes"]) for s in manifest["shards"]]
    receipt = json.loads((data_set / "_receipts/train-00001-of-00003.json").read_bytes())
    assert report.splits[0].shards[1].runs == receipt["statistics"]["runs"] > 0
    assert dict(report.options) == manifest["plan"]["options"]
    assert [row[0] for row in report.features] == [f["key"] for f in manifest["features"]]


def test_all_records_of_a_small_data_set_are_shown(report: Report) -> None:
    assert len(report.pictures) == 15
    assert sum(picture.for_split for picture in report.pictures) == 15
    assert {picture.split for picture in report.pictures} == {"train", "val"}
    assert all(picture.labels == (1, 2) for picture in report.pictures if len(picture.outlines) > 1)
    outline = report.pictures[0].outlines[0]
    assert (outline.label, outline.text) == (1, "person")
    assert outline.box == pytest.approx((1.5 / 64, 2 / 48, 10 / 64, 12.25 / 48))


def test_the_first_of_each_reason_is_an_example(report: Report, data_set: Path) -> None:
    lines = [json.loads(line) for line in (data_set / "rejected.jsonl").read_bytes().splitlines()]
    firsts = {line["code"]: line["key"] for line in reversed(lines)}
    assert {found.code: found.key for found in report.rejects} == firsts
    assert len(report.rejects) == 2 < len(lines)


def test_a_report_holds_no_path(report: Report, data_set: Path) -> None:
    assert str(data_set.parent).encode() not in report_file(report)
    assert report.title == "TFRecord data set of layout detection"


# --- what is damaged is a note ---


def test_a_receipt_that_is_gone_is_made_up_for_by_its_shard(out: Path, report: Report) -> None:
    (out / "_receipts/train-00001-of-00003.json").unlink()
    (out / "_receipts/val-00000-of-00001.json").write_text("{}")
    found = make_report(str(out), ACCESS)
    assert [split.statistics for split in found.splits] == [s.statistics for s in report.splits]
    assert found.pictures == report.pictures
    assert len(found.notes) == 2
    assert found.notes[0] == (
        "_receipts/train-00001-of-00003.json is not there: its shard was read"
    )


def test_receipts_without_statistics_are_made_up_for_in_silence(out: Path, report: Report) -> None:
    for receipt in (out / "_receipts").iterdir():
        data = json.loads(receipt.read_bytes())
        del data["statistics"]
        receipt.write_text(json.dumps(data))
    found = make_report(str(out), ACCESS)
    assert found == report
    with pytest.raises(RuntimeError, match=r"E-VER-MISSING .*has no statistics.*beam-tfrec report"):
        make_report(str(out), ACCESS, scans=False)


def test_a_receipt_of_another_shard_is_not_believed(out: Path, report: Report) -> None:
    receipts = out / "_receipts"
    shutil.copy(receipts / "train-00000-of-00003.json", receipts / "train-00001-of-00003.json")
    found = make_report(str(out), ACCESS)
    assert found.splits[0].statistics == report.splits[0].statistics
    assert "is not of the manifest's shard" in found.notes[0]


def test_a_damaged_record_is_a_note(out: Path, report: Report) -> None:
    shard = shards_of(out)[0]
    data = bytearray(shard.read_bytes())
    data[200] ^= 1
    shard.write_bytes(data)
    found = make_report(str(out), ACCESS)
    assert len(found.pictures) == 14
    (note,) = found.notes
    assert note.startswith(f"{shard.name} record 0 (key ") and "is not shown: damaged" in note
    assert found.splits == report.splits


@pytest.mark.parametrize("how", ["gone", "cut", "folder"])
def test_a_shard_that_is_not_whole_is_a_note(how: str, out: Path) -> None:
    shard = shards_of(out)[0]
    size = shard.stat().st_size
    shard.unlink()
    if how == "cut":
        shard.write_bytes(bytes(size // 2))
    elif how == "folder":
        shard.mkdir()
    found = make_report(str(out), ACCESS)
    assert 11 <= len(found.pictures) < 15
    assert all("is not shown: " in note for note in found.notes)
    assert len(found.notes) + len(found.pictures) == 15


def test_rejects_that_cannot_be_read_are_a_note(out: Path) -> None:
    (out / "rejected.jsonl").write_text('{"code": "E-IMG-TYPE"}\nno JSON\n')
    (note,) = make_report(str(out), ACCESS).notes
    assert note.startswith("rejected.jsonl cannot be read: ")


def test_notes_are_few(out: Path) -> None:
    for shard in shards_of(out):
        shard.write_bytes(bytes(shard.stat().st_size))
    found = make_report(str(out), ACCESS)
    assert len(found.pictures) == 4 and len(found.notes) == 11
    assert found.notes[-1] == "1 more like these are not told"


# --- rejects of any number ---


def rejected(code: str, key: int) -> Rejected:
    return Rejected(code=code, stage="s", split="train", key=str(key), detail="é" * 100)


def test_rejects_are_read_no_further_than_needed(tmp_path: Path) -> None:
    import msgspec

    codes = ["E-IMG-TYPE"] * 5000 + ["E-IMG-EMPTY"] + ["E-IMG-TYPE"] * 5000
    lines = [msgspec.json.encode(rejected(code, n)) for n, code in enumerate(codes)]
    (tmp_path / "rejected.jsonl").write_bytes(b"\n".join(lines) + b"\n" + b"no JSON\n" * 200_000)
    assert len(b"\n".join(lines)) > 2 << 20  # more than one piece
    found = first_rejects(open_storage(str(tmp_path)), {"E-IMG-TYPE", "E-IMG-EMPTY"})
    assert [(r.code, r.key) for r in found] == [("E-IMG-TYPE", "0"), ("E-IMG-EMPTY", "5000")]
    assert first_rejects(open_storage(str(tmp_path / "nowhere")), set()) == []


# --- records by ranges ---


@pytest.mark.parametrize(
    ("offset", "size", "what"),
    [
        (0, 1 << 40, "are too many to be shown"),
        (-5, 100, "there is no record of 100 bytes at byte -5"),
        (0, 10, "there is no record of 10 bytes at byte 0"),
        (1 << 40, 100, "the file ends before it"),
        (1, 100, "damaged, "),
        (0, 100, "damaged, "),
    ],
)
def test_places_that_are_no_record(offset: int, size: int, what: str, data_set: Path) -> None:
    storage, shard = open_storage(str(data_set)), shards_of(data_set)[0]
    picked = PickedRecord("train", shard.name, 0, offset, size, "k", True, ())
    found = read_record(storage, storage.stat(shard.name), picked)
    assert found.data == b"" and what in found.wrong


def test_work_is_done_in_order_and_few_ahead() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        return -number

    made = in_order(work, iter(range(1000)), 3)
    assert [next(made), next(made)] == [0, -1]
    assert len(begun) <= 8
    assert list(made) == [-number for number in range(2, 1000)]


def test_memory_errors_are_nobody_s_note() -> None:
    def fail(_: int) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        make_pictures([1], fail, 1)


# --- many pictures ---


def test_a_page_of_many_pictures_is_small(tmp_path: Path) -> None:
    """400 photos full of noise, of 120 classes: the page keeps below its 5 MB."""
    images = tmp_path / "images"
    images.mkdir()
    spec = coco_dict(400, objects=1, width=400, height=400)
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3)).astype(np.uint8)
    spec["categories"] = [{"id": n, "name": f"class {n}"} for n in range(1, 121)]
    for place, image in enumerate(spec["images"]):
        spec["annotations"][place]["category_id"] = 1 + place % 120
        (images / image["file_name"]).write_bytes(jpeg_of(noise, quality=60 + place % 8))
    (tmp_path / "a.json").write_text(json.dumps(spec))
    committed((images, tmp_path / "a.json"), tmp_path / "out", "--no_report")
    report = make_report(str(tmp_path / "out"), ACCESS)
    assert 150 <= len(report.pictures) <= MAX_PICTURES
    assert sum(len(picture.jpeg) for picture in report.pictures) <= MAX_JPEG_BYTES
    assert len(report_file(report)) < 5_000_000
    assert {label for picture in report.pictures for label in picture.labels} == set(range(1, 121))


# --- files of any origin ---


def record(features: dict[str, tuple[Kind, list]]) -> bytes:
    return b"".join(frame_record(encode_example_parts(features)))


def classified(label: int, text: str = "") -> bytes:
    features: dict[str, tuple[Kind, list]] = {
        "image": (Kind.BYTES, [jpeg_bytes(color=label)]),
        "class": (Kind.INT64, [label]),
    }
    if text:
        features["class/text"] = (Kind.BYTES, [text.encode()])
    return record(features)


def test_files_of_strangers(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.tfrecord", tmp_path / "b.tfrecord.gz"
    plain.write_bytes(b"".join(classified(n % 3) for n in range(10)))
    packed.write_bytes(gzip.compress(b"".join(classified(7) for _ in range(4))))
    report = report_of_files([str(plain), str(packed)], ACCESS, ["said before"])
    (split,) = report.splits
    assert (report.title, split.name, report.layout) == ("a.tfrecord and 1 other", "", "")
    assert split.statistics.class_records == {0: 4, 1: 3, 2: 3, 7: 4}
    assert [(s.file, s.records, s.bytes) for s in split.shards] == [
        ("a.tfrecord", 10, plain.stat().st_size),
        ("b.tfrecord.gz", 4, packed.stat().st_size),
    ]
    assert len(report.pictures) == 14
    assert {p.file for p in report.pictures if 7 in p.for_classes} == {"b.tfrecord.gz"}
    assert report.features == [("class", "int64", "", "class"), ("image", "bytes", "", "picture")]
    assert report.notes == ["said before"]


def test_damage_in_files_of_strangers_is_told(tmp_path: Path) -> None:
    whole = [classified(n) for n in range(5)]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(whole)[:-7])
    packed = tmp_path / "b.tfrecord.gz"
    packed.write_bytes(gzip.compress(b"".join(whole))[:-40])
    report = report_of_files([str(path), str(packed)], ACCESS)
    assert report.splits[0].shards[0].records == 4
    assert any("1 damaged record; record 4 at byte" in note for note in report.notes)
    assert any("its GZIP data is damaged or cut off" in note for note in report.notes)
    assert len([p for p in report.pictures if p.file == "a.tfrecord"]) == 4


def test_classes_by_name_alone_are_found_by_their_name(tmp_path: Path) -> None:
    def boxed(name: str) -> bytes:
        return record(
            {
                "image/encoded": (Kind.BYTES, [jpeg_bytes()]),
                **{f"image/object/bbox/{e}": (Kind.FLOAT, [0.25]) for e in ("xmin", "ymin")},
                **{f"image/object/bbox/{e}": (Kind.FLOAT, [0.5]) for e in ("xmax", "ymax")},
                "image/object/class/text": (Kind.BYTES, [name.encode()]),
            }
        )

    path = tmp_path / "a.tfrecord"
    path.write_bytes(boxed("kite") + boxed("boat"))
    report = report_of_files([str(path)], ACCESS)
    assert report.class_names == {0: "kite", 1: "boat"}
    outlines = {outline for picture in report.pictures for outline in picture.outlines}
    box = (0.25, 0.25, 0.25, 0.25)
    assert outlines == {Outline(0, "kite", box), Outline(1, "boat", box)}
    assert sorted(picture.labels for picture in report.pictures) == [(0,), (1,)]


def test_records_that_are_no_examples(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(frame_record([b"no Example"])))
    report = report_of_files([str(path)], ACCESS)
    assert report.pictures == [] and "1 record without an Example" in report.notes[0]
    assert report.splits[0].shards == [ShardFacts("a.tfrecord", 0, path.stat().st_size)]


def test_short_names() -> None:
    assert short_names(["a/b/x", "a/b/y"]) == ["x", "y"]
    assert short_names(["a/b/x", "a/c/x", "d/x"]) == ["a/b/x", "a/c/x", "d/x"]


def test_statistics_of_a_report_have_no_drawn_records(report: Report) -> None:
    """They are told by pictures: what is added up must not grow with the number of shards."""
    assert all(split.statistics.samples == [] for split in report.splits)
    assert add_statistics([]) == Statistics()
