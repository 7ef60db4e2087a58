"""Images with a JSON file each, end to end: joining, rejects, flags."""

import json
import os
from pathlib import Path

import pytest

from pipelines import sidecar
from tests.coco_command import DATA, digests, examples, rejected_of, shard_paths, value
from tests.conftest import jpeg_bytes
from tests.pipeline_command import committed_by, run_pipeline
from tests.side_folders import labelme, sa1b, shape, sources, write_side_files

CAT_AND_DOG = labelme(shape(), shape("dog"))
MASK = {"id": 1, "bbox": [0, 0, 8, 6], "area": 48}


def file_names(out: Path, split: str = "") -> list[str]:
    found = (value(example, "image/filename")[0].decode() for example in examples(out, split))
    return sorted(found)


def rejects(out: Path) -> list[tuple[str, str, str]]:
    return [(one["code"], one["key"], one["detail"]) for one in rejected_of(out)]


def test_labelme_and_sa1b_are_known_by_content(tmp_path: Path) -> None:
    files = {"1": CAT_AND_DOG, "a/2": labelme(), "a/b/3": sa1b(MASK, width=64, height=48)}
    manifest = committed_by(
        sidecar.run, tmp_path / "out", *sources(write_side_files(tmp_path, files))
    )
    got = {
        value(example, "image/filename")[0]: (
            value(example, "image/object/class/text"),
            value(example, "image/object/class/label"),
        )
        for example in examples(tmp_path / "out")
    }
    assert got == {
        b"1.jpg": ([b"cat", b"dog"], [1, 2]),
        b"a/2.jpg": ([], []),
        b"a/b/3.jpg": ([b"object"], [3]),
    }
    assert manifest["splits"]["train"]["annotations"] == {
        "dropped": {},
        "excluded": 0,
        "listed": 3,
        "lost": 0,
        "written": 3,
    }


def test_annotation_files_have_names_as_odd_as_their_images(tmp_path: Path) -> None:
    images, annotations = write_side_files(tmp_path, {"a": CAT_AND_DOG, "b\nc": CAT_AND_DOG})
    (annotations / "a.json").rename(annotations / "a.JSON")
    flags = *sources((images, annotations)), "--allow_unannotated"
    manifest = committed_by(sidecar.run, tmp_path / "out", *flags)
    assert manifest["splits"]["train"]["annotations"]["written"] == 4


def test_everything_that_can_be_wrong_with_a_sample_is_one_reject(tmp_path: Path) -> None:
    good = {f"good{number}": CAT_AND_DOG for number in range(8)}
    files = {
        **good,
        "broken": b'{"shapes": [}',
        "gbk": json.dumps(labelme(shape("\u72d7")), ensure_ascii=False).encode("gbk"),
        "alone": None,
        "gone": CAT_AND_DOG,
        "two": labelme(),
    }
    folders = write_side_files(
        tmp_path, {**files, "bad": labelme(shape(), shape("x", "point", (1, 1)))}
    )
    images, _ = folders
    (images / "gone.jpg").unlink()
    (images / "two.png").write_bytes((images / "two.jpg").read_bytes())
    (images / "good7.jpg").write_bytes(b"")
    manifest = committed_by(sidecar.run, tmp_path / "out", *sources(folders), "--max_rejected", 8)
    twice = "2 images and 1 annotation files have its name"
    broken = "broken.json: JSON is malformed: invalid character (byte 12)"
    assert rejects(tmp_path / "out") == [
        ("E-ANN-MISSING", "alone.jpg", "no annotation file has its name"),
        ("E-ANN-SHAPE", "bad.jpg", "shape_type is 'point'"),
        ("E-ANN-FILE", "broken.jpg", broken),
        ("E-ANN-FILE", "gbk.jpg", "gbk.json: not UTF-8 (byte 136): save the file as UTF-8"),
        ("E-IMG-MISSING", "gone.json", "no such image"),
        ("E-IMG-EMPTY", "good7.jpg", "0 bytes"),
        ("E-SRC-TWICE", "two.jpg", twice),
        ("E-SRC-TWICE", "two.json", twice),
        ("E-SRC-TWICE", "two.png", twice),
    ]
    summary = manifest["splits"]["train"]
    assert (summary["listed"], summary["records"]) == (16, 8)
    assert summary["annotations"] == {
        "dropped": {"E-ANN-SHAPE": 1},
        "excluded": 0,
        "listed": 20,
        "lost": 4,
        "written": 15,
    }


def test_a_folder_of_annotations_that_cannot_be_listed_is_a_reject(tmp_path: Path) -> None:
    folders = write_side_files(tmp_path, {"a": CAT_AND_DOG, "b": CAT_AND_DOG, "c": CAT_AND_DOG})
    os.mkdir(os.fsencode(folders[1]) + b"/\xff")
    os.mkfifo(folders[1] / "d.json")
    committed_by(sidecar.run, tmp_path / "out", *sources(folders), "--max_rejected", 2)
    assert [(code, detail) for code, _, detail in rejects(tmp_path / "out")] == [
        ("E-ANN-FILE", "a directory whose name is no UTF-8"),
        ("E-ANN-FILE", "a fifo"),
    ]


def test_a_glob_chooses_annotation_files(tmp_path: Path) -> None:
    images, annotations = write_side_files(tmp_path, {"a/1": CAT_AND_DOG, "b/2": CAT_AND_DOG})
    flags = ["--images", images, "--annotations", f"{annotations}/a/*.json", "--max_rejected", 1]
    (images / "1.jpg").write_bytes(jpeg_bytes())  # names are below the folder in front of the *
    committed_by(sidecar.run, tmp_path / "out", *flags, "--max_rejected", 2)
    assert file_names(tmp_path / "out") == ["1.jpg"]


@pytest.mark.parametrize(
    ("named", "content"),
    [
        ("imagePath", labelme(shape(), imagePath="..\\photos\\p1.jpg")),
        ("image.file_name", sa1b(MASK, width=64, height=48, file_name="p1.jpg")),
    ],
)
def test_files_may_name_their_images(named: str, content: dict, tmp_path: Path) -> None:
    images, annotations = write_side_files(tmp_path, {"x": content, "y": labelme(shape())})
    (images / "x.jpg").rename(images / "p1.jpg")
    (images / "y.jpg").unlink()
    (annotations / "z.json").write_bytes(b"{}")
    (annotations / "y.json").write_text(json.dumps({**content, "image": {}, "imagePath": "q.jpg"}))
    flags = ["--join_by", named, "--max_rejected", 2]
    for number in range(3):
        (images / f"more{number}.jpg").write_bytes(jpeg_bytes(color=number))
        more = labelme(shape(), imagePath=f"more{number}.jpg")
        more["image"] = {"file_name": f"more{number}.jpg"}
        (annotations / f"m{number}.json").write_text(json.dumps(more))
    committed_by(sidecar.run, tmp_path / "out", *sources((images, annotations)), *flags)
    assert file_names(tmp_path / "out") == ["more0.jpg", "more1.jpg", "more2.jpg", "p1.jpg"]
    found = rejects(tmp_path / "out")
    assert [key for _, key, _ in found] == ["y.json", "z.json"]
    if named == "imagePath":
        assert found[0] == ("E-IMG-MISSING", "y.json", "'q.jpg', by its imagePath: no such image")
    assert found[1][0] == "E-ANN-FILE"


def test_join_by_a_field_that_is_not_there_stops(tmp_path: Path) -> None:
    folders = write_side_files(tmp_path, {"a": CAT_AND_DOG, "b": CAT_AND_DOG})
    flags = ["--join_by", "picture", "--output", tmp_path / "out"]
    ended = run_pipeline(sidecar.run, *sources(folders), *flags)
    assert (ended.code, ended.err.count("no picture that names an image")) == (4, 2)


@pytest.mark.parametrize(("name", "rejected"), [("labelme", "b.jpg"), ("sa1b", "a.jpg")])
def test_files_of_another_format_are_rejected(name: str, rejected: str, tmp_path: Path) -> None:
    folders = write_side_files(tmp_path, {"a": CAT_AND_DOG, "b": sa1b(MASK, width=64, height=48)})
    flags = ["--format", name, "--max_rejected", 1]
    committed_by(sidecar.run, tmp_path / "out", *sources(folders), *flags)
    assert [(code, key) for code, key, _ in rejects(tmp_path / "out")] == [("E-ANN-FILE", rejected)]


def test_splits_by_a_field_and_groups_of_one(tmp_path: Path) -> None:
    files = {
        f"{n}": labelme(shape(), flags={"part": "test" if n % 4 == 0 else "train"}, scene=n // 4)
        for n in range(24)
    }
    folders = write_side_files(tmp_path, files)
    committed_by(sidecar.run, tmp_path / "field", *sources(folders), "--split_by", "flags.part")
    assert file_names(tmp_path / "field", "test") == sorted(f"{n}.jpg" for n in range(0, 24, 4))
    hashed = ["--split_by", "hash", "--splits", "train=50,test=50", "--group_by", "scene"]
    committed_by(sidecar.run, tmp_path / "hash", *sources(folders), *hashed)
    scenes = [
        {int(name.removesuffix(".jpg")) // 4 for name in file_names(tmp_path / "hash", split)}
        for split in ("train", "test")
    ]
    assert all(scenes)
    assert not scenes[0] & scenes[1]


def test_reruns_complete_resume_and_see_changed_annotations(tmp_path: Path) -> None:
    folders = write_side_files(tmp_path, {f"{n}": CAT_AND_DOG for n in range(6)})
    out = tmp_path / "out"
    flags = [*sources(folders), "--num_shards", 3, "--features", "boxes,polygons"]
    committed_by(sidecar.run, out, *flags)
    before = digests(out, *DATA)
    again = run_pipeline(sidecar.run, *flags, "--output", out)
    assert again.out == f"already complete: {out / 'manifest.json'}\n"
    (out / "manifest.json").unlink()
    shard_paths(out)[1].unlink()
    resumed = run_pipeline(sidecar.run, *flags, "--output", out)
    assert (resumed.err.count("kept "), resumed.err.count("wrote ")) == (2, 1)
    assert digests(out, *DATA) == before
    (folders[1] / "3.json").write_text(json.dumps(labelme(shape("cow"))))
    changed = run_pipeline(sidecar.run, *flags, "--output", out)
    assert changed.fault.startswith("E-OUT-PLAN")


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (
            ["--images", "a=x", "--annotations", "b=x"],
            "E-ARG command line: images and annotations must name the same splits, got images"
            " ['a'] and annotations ['b']; give both as SPLIT=PATH",
        ),
        (
            ["--images", "x", "--annotations", "x", "--features", "boxes,captions"],
            "E-ARG command line: features must be of boxes, masks, polygons, got"
            " 'boxes,captions'; leave out 'captions'",
        ),
        (
            ["--images", "x", "--annotations", "x", "--features", "masks"],
            "E-ARG command line: features masks are of objects, which need boxes, got 'masks';"
            " add boxes",
        ),
    ],
)
def test_wrong_flags(flags: list[object], fault: str, tmp_path: Path) -> None:
    ended = run_pipeline(sidecar.run, *flags, "--output", tmp_path / "out")
    assert (ended.code, ended.fault) == (2, fault)
