"""Folders of classes in a bucket, on the stand-in."""

from pathlib import Path

import pytest

from pipelines import folder
from tests.coco_command import check_committed, digests, run_pipeline
from tests.gcs_stand_in import GcsStandIn
from tests.test_folder_pipeline import committed, write


def test_the_shards_are_those_of_folders_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, names = tmp_path / "in", tmp_path / "names.txt"
    write(root / "train")
    write(root / "val", ("dog/1.jpg", "dog/Thumbs.db"))
    names.write_text("emu\ndog\ncat\n")
    images = ("--images", f"train={root}/train", f"val={root}/val")
    committed(tmp_path / "local", *images, "--label_file", names)
    with GcsStandIn() as stand_in:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stand_in.url)
        objects = {f"set/{p.relative_to(root)}": p.read_bytes() for p in root.rglob("*.*")}
        markers = {"set/train/": b"", "set/train/cat/": b""}  # as consoles make for folders
        for name, data in {**objects, **markers, "names.txt": names.read_bytes()}.items():
            stand_in.put("in", name, data)
        stand_in.make_bucket("out")
        images = ("--images", "train=gs://in/set/train", "val=gs://in/set/val")
        arguments = (*images, "--label_file", "gs://in/names.txt")
        run = run_pipeline(folder.run, *arguments, "--output", "gs://out")
        assert run.code == 0, run.err
        for name, data in stand_in.objects("out").items():
            path = tmp_path / "downloaded" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    manifest = check_committed(tmp_path / "downloaded")
    assert manifest["splits"]["val"]["skipped"] == {"not_called_an_image": 1}
    assert digests(tmp_path / "downloaded", "*.tfrec") == digests(tmp_path / "local", "*.tfrec")
