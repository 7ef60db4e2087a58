"""`pipelines.folder` from folders to records, read back by TensorFlow."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipelines import folder
from tests.coco_command import committed_by, examples, rejected_of, run_pipeline, value
from tests.conftest import jpeg_bytes

PHOTOS = ("cat/1.jpg", "cat/deep/er/2.jpg", "dog/1.jpg", "dog/9.png", "emu/1.jpg")


def write(root: Path, names: Mapping[str, bytes] | tuple[str, ...] = PHOTOS) -> Path:
    """Write files, photos that all differ where no bytes are given."""
    given = names if isinstance(names, Mapping) else {name: photo(name) for name in names}
    for name, data in given.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def photo(name: str) -> bytes:
    return jpeg_bytes(8, 6, color=int(hashlib.sha256(name.encode()).hexdigest()[:4], 16))


def committed(out: Path, *arguments: object) -> dict[str, Any]:
    return committed_by(folder.run, out, *arguments)


def ended(*arguments: object) -> tuple[int, str]:
    """Run a command that must fail; return its exit code and its line."""
    run = run_pipeline(folder.run, *arguments)
    return run.code, run.fault


def labelled(out: Path, split: str = "") -> dict[str, tuple[int, str]]:
    """Return the class's number and text by file name."""
    return {
        value(example, "image/filename")[0].decode(): (
            value(example, "image/class/label")[0],
            value(example, "image/class/text")[0].decode(),
        )
        for example in examples(out, split)
    }


def labels_of(manifest: dict[str, Any]) -> list[tuple[int, str]]:
    return [(label["id"], label["name"]) for label in manifest["plan"]["labels"]]


def test_every_photo_with_its_class(tmp_path: Path) -> None:
    root, out = write(tmp_path / "in"), tmp_path / "out"
    manifest = committed(out, "--images", root)
    assert labels_of(manifest) == [(0, "cat"), (1, "dog"), (2, "emu")]
    assert labelled(out) == {
        "cat/1.jpg": (0, "cat"),
        "cat/deep/er/2.jpg": (0, "cat"),
        "dog/1.jpg": (1, "dog"),
        "dog/9.png": (1, "dog"),
        "emu/1.jpg": (2, "emu"),
    }
    for example in examples(out):
        data = (root / value(example, "image/filename")[0].decode()).read_bytes()
        assert value(example, "image/encoded") == [data]
        assert value(example, "image/format") == [b"jpeg"]  # 9.png too: by content
        assert (value(example, "image/width"), value(example, "image/height")) == ([8], [6])
        assert value(example, "image/key/sha256") == [hashlib.sha256(data).hexdigest().encode()]


def test_a_folder_without_images_stops_the_run(tmp_path: Path) -> None:
    root = write(tmp_path / "in", {"cat/a.txt": b"text"})
    code, line = ended("--images", root, "--output", tmp_path / "out")
    assert (code, line.split(";")[0]) == (3, "E-SET-EMPTY split train: none of 1 image is left")


ODD = (" lead/1.jpg", "a\nb/1.jpg", "t\tb/1.jpg", 'x"q/1.jpg', "ünï/1.jpg", "[a]*/1.jpg")


def test_rejects_and_the_run_without_them(tmp_path: Path) -> None:
    bad = {"stray.jpg": jpeg_bytes(), "cat/cut.jpg": jpeg_bytes()[:99], "dog/a.jpg": b"<html>"}
    root, out = write(write(tmp_path / "in", ODD), bad), tmp_path / "out"
    for name in (b"bad\xff/1.jpg", b"a/\xff.jpg"):
        path = Path(os.fsdecode(os.path.join(os.fsencode(root), name)))
        path.parent.mkdir()
        path.write_bytes(jpeg_bytes())
    run = run_pipeline(folder.run, "--images", root, "--output", out)
    assert (run.code, "3 of 11 samples rejected" in run.err) == (4, True)  # without reading any
    assert "E-SRC-LABEL stray.jpg (key stray.jpg): not in a folder that names" in run.err
    committed(out, "--images", root, "--max_rejected", 5)
    assert [(line["code"], line["key"]) for line in rejected_of(out)] == [
        ("E-IMG-NOT-A-FILE", "a/\\xff.jpg"),
        ("E-SRC-LABEL", "bad\\xff"),
        ("E-IMG-TRUNCATED", "cat/cut.jpg"),
        ("E-IMG-TYPE", "dog/a.jpg"),
        ("E-SRC-LABEL", "stray.jpg"),
    ]
    without = tmp_path / "without"
    excluded = committed(without, "--images", root, "--exclude", out / "rejected.jsonl")
    assert (excluded["splits"]["train"]["excluded"], rejected_of(without)) == (5, [])
    assert labelled(without) == labelled(out)
    assert {name: text for name, (_, text) in labelled(out).items()} == {
        name: name.split("/")[0] for name in ODD
    }


def test_folders_that_are_splits(tmp_path: Path) -> None:
    root = tmp_path / "in"
    write(root / "train")
    write(root / "val", ("dog/1.jpg", "fox/1.jpg"))
    write(root / "test", ("cat/1.jpg",))  # not asked for
    images = ("--images", f"train={root}/train", f"val={root}/val")
    given = committed(tmp_path / "given", *images)
    assert labels_of(given) == [*enumerate(["cat", "dog", "emu", "fox"])]
    assert labelled(tmp_path / "given", "val") == {"dog/1.jpg": (1, "dog"), "fox/1.jpg": (3, "fox")}
    too_high = run_pipeline(folder.run, "--images", root, "--output", tmp_path / "too_high")
    line = "the classes are called test,train,val: for splits, give --images SPLIT=DIR\n"
    assert (too_high.code, line in too_high.err) == (0, True)


def test_a_day_adds_to_the_days_before_it(tmp_path: Path) -> None:
    root, monday, tuesday = write(tmp_path / "in"), tmp_path / "monday", tmp_path / "tuesday"
    committed(monday, "--images", root)
    again = run_pipeline(folder.run, "--images", root, "--output", monday)
    assert (again.code, again.out) == (0, f"already complete: {monday}/manifest.json\n")
    write(root, ("ant/1.jpg", "dog/new.jpg"))
    changed, line = ended("--images", root, "--output", monday)
    assert (changed, line.startswith("E-OUT-PLAN")) == (5, True)
    since = ("--images", root, "--since", monday)
    assert ended(*since, "--output", tuesday, "--first_label", 1) == (
        2,
        "E-ARG --since: classes of its data sets are not numbered from 1 without gaps;"
        " give the --category_ids or --first_label that they were made with",
    )
    manifest = committed(tuesday, *since)
    assert labelled(tuesday) == {"ant/1.jpg": (3, "ant"), "dog/new.jpg": (1, "dog")}
    assert manifest["splits"]["train"]["earlier"] == 5
    assert labels_of(manifest) == [(0, "cat"), (1, "dog"), (2, "emu"), (3, "ant")]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--images", "a", "b"), "images of train must come once, got 'a' and 'b'; remove one"),
        (
            ("--images", "a", "--dtype", "uint8"),
            "dtype must come with layout tensor, got layout classification; leave it out",
        ),
        (
            ("--images", "a", "--layout", "imagenet", "--reencode", "png"),
            "reencode must make JPEGs of RGB for layout imagenet, got png; leave it out, or give"
            " --layout classification",
        ),
    ],
)
def test_flags_that_do_not_fit_together(
    arguments: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    assert ended(*arguments, "--output", tmp_path) == (2, f"E-ARG command line: {line}")
