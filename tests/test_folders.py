"""Folders of classes and of pairs to records: what readers get, rejects, label files."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.pipelines import folder, pairs
from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.layouts import Built, Unfit
from beam_tfrec.schemas.layouts.classification import PairsLayout
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.sources.listing import ListedFile, why_skipped
from beam_tfrec.transforms.sources.read_folder import FolderReader
from beam_tfrec.transforms.storage import Entry
from tests.array_runs import parsed
from tests.coco_command import committed_by, examples, literal_png, rejected_of, run_pipeline, value
from tests.conftest import jpeg_bytes
from tests.small_pictures import or_unfit
from tests.turned_images import encoded

PHOTOS = ("cat/1.jpg", "cat/deep/er/2.jpg", "dog/1.jpg", "dog/9.png", "emu/1.jpg")


def write(root: Path, names: Mapping[str, bytes] | tuple[str, ...] = PHOTOS) -> Path:
    """Write files; where no bytes are given, photos that all differ."""
    given = names if isinstance(names, Mapping) else {name: photo(name) for name in names}
    for name, data in given.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def photo(name: str) -> bytes:
    return jpeg_bytes(8, 6, color=int(hashlib.sha256(name.encode()).hexdigest()[:4], 16))


def committed(out: Path, *arguments: object) -> dict[str, Any]:
    return committed_by(folder.run, out, *arguments)


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


def test_each_record_has_its_photo_and_class(tmp_path: Path) -> None:
    root, out = write(tmp_path / "in", (*PHOTOS, "cat/a.txt", "b.txt", ".c")), tmp_path / "out"
    manifest = committed(out, "--images", root)
    train = manifest["splits"]["train"]
    assert (train["listed"], train["records"]) == (8, 5)
    assert train["skipped"] == {"hidden": 1, "not_called_an_image": 2}
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
        assert value(example, "image/format") == [b"jpeg"]  # 9.png too, which is a JPEG
        assert (value(example, "image/width"), value(example, "image/height")) == ([8], [6])
        assert value(example, "image/key/sha256") == [hashlib.sha256(data).hexdigest().encode()]


def test_raw_records_are_read_by_the_tutorials_parser(tmp_path: Path) -> None:
    import tensorflow as tf

    root, out = write(tmp_path / "in"), tmp_path / "out"
    committed(out, "--images", root, "--layout", "raw", "--color", "gray")
    rows = parsed(out, tf.uint8, label=tf.io.FixedLenFeature([], tf.int64))
    sizes = [(row["height"], row["width"], row["depth"]) for row in rows]
    assert sizes == [row["image"].shape for row in rows] == [(6, 8, 1)] * len(PHOTOS)
    assert sorted(row["label"] for row in rows) == [0, 0, 1, 1, 2]


ODD = (" lead/1.jpg", "a\nb/1.jpg", "t\tb/1.jpg", 'x"q/1.jpg', "ünï/1.jpg", "[a]*/1.jpg")


@pytest.mark.thorough
def test_excluding_the_rejects_keeps_all_other_records(tmp_path: Path) -> None:
    bad = {"stray.jpg": jpeg_bytes(), "cat/cut.jpg": jpeg_bytes()[:99], "dog/a.jpg": b"<html>"}
    root, out = write(write(tmp_path / "in", ODD), bad), tmp_path / "out"
    for name in (b"bad\xff/1.jpg", b"a/\xff.jpg"):
        path = Path(os.fsdecode(os.path.join(os.fsencode(root), name)))
        path.parent.mkdir()
        path.write_bytes(jpeg_bytes())
    run = run_pipeline(folder.run, "--images", root, "--output", out)
    assert (run.code, "3 of 11 samples rejected" in run.err) == (4, True)  # before reading any
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


@pytest.mark.thorough
def test_split_folders(tmp_path: Path) -> None:
    root = tmp_path / "in"
    write(root / "train")
    write(root / "val", ("dog/1.jpg", "fox/1.jpg"))
    write(root / "test", ("cat/1.jpg",))  # not asked for
    images = ("--images", f"train={root}/train", f"val={root}/val")
    given = committed(tmp_path / "given", *images)
    assert labels_of(given) == [*enumerate(["cat", "dog", "emu", "fox"])]
    assert labelled(tmp_path / "given", "val") == {"dog/1.jpg": (1, "dog"), "fox/1.jpg": (3, "fox")}
    too_high = run_pipeline(folder.run, "--images", root, "--output", tmp_path / "too_high")
    given = " ".join(f"{split}={root}/{split}" for split in ("test", "train", "val"))
    line = f"the classes are test, train, val; if these are splits, give --images {given}\n"
    assert (too_high.code, line in too_high.err) == (0, True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (".DS_Store", "hidden"),
        ("cat/.1.jpg", "hidden"),
        ("cat/1.jpg.txt", "not_called_an_image"),
        ("cat.jpg/readme", "not_called_an_image"),
        ("cat/1.", "not_called_an_image"),
        ("cat/1..jpg", ""),
    ],
)
def test_skipped_names(name: str, why: str) -> None:
    assert why_skipped(name) == why


NOT_UTF8 = "directory whose name is not UTF-8"


@pytest.mark.parametrize(
    ("name", "kind", "code", "detail"),
    [
        ("1.jpg", "file", "E-SRC-LABEL", "not in a folder that names its class"),
        ("cat/1.jpg", "FIFO", "E-IMG-NOT-A-FILE", "a FIFO"),
        ("cat/1.jpg", "dangling link", "E-IMG-MISSING", "a link to nothing"),
        ("cat/\\xff", NOT_UTF8, "E-SRC-LABEL", f"a {NOT_UTF8}: its files cannot be listed"),
    ],
)
def test_entries_that_are_not_image_files_are_rejected(
    name: str, kind: str, code: str, detail: str
) -> None:
    entry = Entry(name, 0 if kind != "file" else 9, "5", 77, kind)
    rejected, *_ = FolderReader(Splitting())(ListedFile("train", entry, 4))
    assert isinstance(rejected, Rejected)
    assert (rejected.code, rejected.key, rejected.detail) == (code, name, detail)


SYNSETS = "n01440764 tench, Tinca tinca\nn01443537 goldfish, Carassius auratus\nn01484850\n"


def test_imagenet_with_synsets_and_their_texts(tmp_path: Path) -> None:
    synsets, out = tmp_path / "synsets.txt", tmp_path / "out"
    synsets.write_text(SYNSETS)
    root = write(tmp_path / "in", ("n01443537/n01443537_7.JPEG", "n01484850/n01484850_2.JPEG"))
    flags = ("--layout", "imagenet", "--label_file", synsets, "--order", "input")
    manifest = committed(out, "--images", root, *flags)
    keys = ("label", "synset", "text")
    found = [[value(one, f"image/class/{key}")[0] for key in keys] for one in examples(out)]
    assert found == [
        [2, b"n01443537", b"goldfish, Carassius auratus"],
        [3, b"n01484850", b"n01484850"],
    ]
    assert manifest["plan"]["labels"] == [
        {"id": 1, "name": "n01440764", "text": "tench, Tinca tinca"},
        {"id": 2, "name": "n01443537", "text": "goldfish, Carassius auratus"},
        {"id": 3, "name": "n01484850"},
    ]


@pytest.mark.thorough
def test_label_file_must_match_sources_and_earlier_data_sets(tmp_path: Path) -> None:
    root, names, monday = write(tmp_path / "in"), tmp_path / "names.txt", tmp_path / "monday"
    names.write_text("cat\nemu\n")
    run = run_pipeline(folder.run, "--images", root, "--label_file", names, "--output", monday)
    assert (run.code, run.fault) == (
        3,
        f"E-ANN-LABELS {names}: it lacks the sources' class 'dog';"
        " add it at the end, or leave its samples out of the sources",
    )
    assert not (monday / "_plan.json").exists()
    committed(monday, "--images", root)
    write(root, ("ant/1.jpg",))
    tuesday = ("--images", root, "--since", monday, "--label_file", names)
    names.write_text("ant\ncat\ndog\nemu\n")
    run = run_pipeline(folder.run, *tuesday, "--output", tmp_path / "b")
    what = "category 0 'ant' contradicts category 0 'cat'"
    assert (run.code, run.fault.split(";")[0]) == (3, f"E-ANN-LABELS {names}: {what}")
    names.write_text("cat\ndog\nemu\nant\nyak\n")
    manifest = committed(tmp_path / "c", *tuesday)
    assert labelled(tmp_path / "c") == {"ant/1.jpg": (3, "ant")}
    assert labels_of(manifest) == [*enumerate(["cat", "dog", "emu", "ant", "yak"])]


# --- pairs of a low and a high image ---


def write_pairs(root: Path, suffix: str = "") -> tuple[Path, Path]:
    """Write pairs `0000.png` …, the low images with a suffix; return both folders."""
    low, high = root / "low", root / "high"
    low.mkdir()
    high.mkdir()
    for number in range(6):
        (low / f"{number:04}{suffix}.png").write_bytes(literal_png(3, 2, number))
        (high / f"{number:04}.png").write_bytes(literal_png(6, 4, number))
    return low, high


def test_records_hold_both_files_and_the_high_name(tmp_path: Path) -> None:
    low, high = write_pairs(tmp_path, suffix="x2")
    flags = ("--low", low, "--high", high, "--scale", 2, "--order", "input")
    manifest = committed_by(pairs.run, tmp_path / "out", *flags)
    got = {}
    for example in examples(tmp_path / "out"):
        (name,), (lr,), (hr,) = (value(example, key) for key in ("filename", "lr", "hr"))
        got[name.decode()] = lr, hr
    assert got == {
        f"{number:04}.png": (literal_png(3, 2, number), literal_png(6, 4, number))
        for number in range(6)
    }
    assert [*got] == sorted(got)
    assert [feature["key"] for feature in manifest["features"]] == ["filename", "hr", "lr"]


@pytest.mark.parametrize(
    ("flags", "suffix"),
    [([], ""), (["--scale", "2"], "x2"), (["--scale", "2", "--low_suffix", "_lr"], "_lr")],
)
def test_suffix_follows_the_scale_unless_given(flags: list[str], suffix: str) -> None:
    roots = ["--low", "l", "--high", "h", "--output", "o"]
    config, _ = pairs.run.configure([*roots, *flags])
    assert config.low_suffix == suffix


def test_files_without_a_partner_are_rejects(tmp_path: Path) -> None:
    low, high = write_pairs(tmp_path)
    (low / "0001.png").unlink()
    (high / "0002.png").unlink()
    (low / "0003.bmp").write_bytes(literal_png(3, 2, 0))
    for root in (low, high):
        os.mkdir(os.fsencode(root) + b"/\xff")  # cannot be listed
    (low / ".hidden").mkdir()
    (high / "Thumbs.db").write_bytes(b"")
    flags = ("--low", low, "--high", high, "--max_rejected", 6)
    manifest = committed_by(pairs.run, tmp_path / "out", *flags)
    assert [
        (line["code"], line["key"], line["detail"]) for line in rejected_of(tmp_path / "out")
    ] == [
        ("E-IMG-MISSING", "0001.png", "no low image has its name"),
        ("E-SRC-TWICE", "0003.png", "2 low and 1 high images have its name"),
        ("E-IMG-NOT-A-FILE", "\\xff", "a directory whose name is not UTF-8"),
        ("E-IMG-MISSING", "low:0002.png", "no high image has its name"),
        ("E-SRC-TWICE", "low:0003.bmp", "2 low and 1 high images have its name"),
        ("E-SRC-TWICE", "low:0003.png", "2 low and 1 high images have its name"),
    ]
    kept = sorted(value(example, "filename") for example in examples(tmp_path / "out"))
    assert kept == [[b"0000.png"], [b"0004.png"], [b"0005.png"]]
    assert manifest["splits"]["train"]["listed"] == 10
    assert manifest["splits"]["train"]["skipped"] == {"not_called_an_image": 1}


@pytest.mark.parametrize(
    ("size", "scale", "detail"),
    [
        ((6, 4), None, ""),
        ((9, 6), 2, "high is 9 x 6, not 2 times of low's 3 x 2"),
        ((6, 5), None, "high is 6 x 5, not a whole multiple of low's 3 x 2"),
    ],
)
def test_sizes_are_checked(size: tuple[int, int], scale: int | None, detail: str) -> None:
    images = [encoded(literal_png(3, 2, 0)), encoded(literal_png(*size, 0))]
    sample = Sample("train", "a.png", 0, (), b"")
    built = or_unfit(PairsLayout(scale).build, sample, images, {})
    assert built == Unfit("E-IMG-SIZE", detail, 1) if detail else isinstance(built, Built)
