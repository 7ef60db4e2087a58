"""Folders of classes drawn into splits: real photos, some added later, and folders as groups."""

import re
from fractions import Fraction
from pathlib import Path

import pytest

from pipelines import folder
from pipelines.folder import FolderConfig
from schemas.splits import HASH, Splitting
from tests.coco_command import examples, value
from tests.conftest import jpeg_bytes
from tests.pipeline_command import committed_by, run_pipeline

BY_HASH = ("--split_by", "hash", "--splits", "train=80,val=10,test=10")
SPLITS = ("train", "val", "test")


def split_of_each(out: Path) -> dict[str, str]:
    """Return the split of every photo, by its name, as TensorFlow reads the records."""
    return {
        value(example, "image/filename")[0].decode(): split
        for split in SPLITS
        for example in examples(out, f"{split}-")
    }


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Two classes, photos of twelve scenes in each, two a scene and class."""
    root = tmp_path / "images"
    for scene in range(12):
        for place, name in enumerate(("cat", "dog")):
            for shot in range(2):
                path = root / name / f"s{scene}" / f"{shot}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(jpeg_bytes(color=4 * scene + 2 * place + shot))
    return root


def test_folders_keep_their_photos_together(scenes: Path, tmp_path: Path) -> None:
    """Whatever the class: the same scene may have cats and dogs."""
    flags = (*BY_HASH, "--group_by", "folder", "--split_seed", 1, "--allow_empty")
    committed_by(folder.run, tmp_path / "out", "--images", scenes, *flags)
    splits: dict[str, set[str]] = {}
    for name, split in split_of_each(tmp_path / "out").items():
        splits.setdefault(name.split("/")[1], set()).add(split)
    assert len(splits) == 12
    assert all(len(drawn) == 1 for drawn in splits.values())
    assert len({split for drawn in splits.values() for split in drawn}) > 1


def test_folders_say_the_split(tmp_path: Path) -> None:
    for name, part in (("cat", "train"), ("dog", "train"), ("cat", "Test")):
        path = tmp_path / "images" / name / part / "1.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(jpeg_bytes(color=len(f"{name}{part}")))
    flags = ("--images", tmp_path / "images", "--split_by", "folder")
    manifest = committed_by(folder.run, tmp_path / "out", *flags)
    assert sorted(manifest["splits"]) == ["test", "train"]
    assert split_of_each(tmp_path / "out") == {
        "cat/train/1.jpg": "train",
        "dog/train/1.jpg": "train",
        "cat/Test/1.jpg": "test",
    }
    again = run_pipeline(folder.run, *flags, "--output", tmp_path / "out")
    assert again.out.startswith("already complete")
    named = run_pipeline(folder.run, *flags, "--output", tmp_path / "named", "--splits", "train")
    assert named.ended == (3, "E-SRC-SPLIT")
    assert named.fault.endswith(
        "folder is 'Test', which is none of train; correct it, or name all splits with --splits"
    )


def test_a_photo_without_a_folder_stops_a_grouped_run(scenes: Path, tmp_path: Path) -> None:
    (scenes / "cat" / "stray.jpg").write_bytes(jpeg_bytes(color=99))
    flags = ("--images", scenes, "--output", tmp_path / "out", *BY_HASH, "--group_by", "folder")
    assert run_pipeline(folder.run, *flags).fault == (
        "E-SRC-SPLIT cat/stray.jpg: folder has no value, and decides its split; give every sample"
        " one, or split without it"
    )


def test_other_fields_are_not_known() -> None:
    message = "split_by must name a field that these samples have, got 'part': give folder"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}, or leave it out$"):
        FolderConfig(output="out", images={"train": "a"}, splitting=Splitting("part"))


def test_two_folders_are_not_drawn_from() -> None:
    drawn = Splitting(HASH, {"train": Fraction(1)})
    with pytest.raises(ValueError, match="divides one source, got sources of train and val"):
        FolderConfig(output="out", images={"train": "a", "val": "b"}, splitting=drawn)
