"""Label files in whole runs, and what TensorFlow Datasets and label maps say of classes."""

from pathlib import Path

import pytest

from tests.coco_command import examples, value
from tests.test_folder_pipeline import committed, ended, labelled, labels_of, write

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


def test_days_have_to_agree_with_the_label_file(tmp_path: Path) -> None:
    root, names, monday = write(tmp_path / "in"), tmp_path / "names.txt", tmp_path / "monday"
    names.write_text("cat\nemu\n")
    assert ended("--images", root, "--label_file", names, "--output", monday) == (
        3,
        f"E-ANN-LABELS {names}: class 'dog' of the sources is not there;"
        " add it at the end, or leave its samples out of the sources",
    )
    assert not (monday / "_plan.json").exists()
    committed(monday, "--images", root)
    write(root, ("ant/1.jpg",))
    tuesday = ("--images", root, "--since", monday, "--label_file", names)
    names.write_text("ant\ncat\ndog\nemu\n")
    code, line = ended(*tuesday, "--output", tmp_path / "b")
    what = "category 0 'ant' contradicts category 0 'cat'"
    assert (code, line.split(";")[0]) == (3, f"E-ANN-LABELS {names}: {what}")
    names.write_text("cat\ndog\nemu\nant\nyak\n")
    manifest = committed(tmp_path / "c", *tuesday)
    assert labelled(tmp_path / "c") == {"ant/1.jpg": (3, "ant")}
    assert labels_of(manifest) == [*enumerate(["cat", "dog", "emu", "ant", "yak"])]


def test_tensorflow_datasets_knows_the_classes(shared_data: Path, tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    root, out = shared_data / "classes", tmp_path / "out"
    committed(out, "--images", root, "--shard_names", "plain")
    builder = tfds.builder_from_directory(out)
    names = builder.info.features["image"]["class"]["label"].names
    assert names == sorted(path.name for path in root.iterdir())
    count = 0
    for one in builder.as_dataset(split="train"):
        image = one["image"]
        assert image["encoded"].shape == (image["height"], image["width"], 3)
        assert names[int(image["class"]["label"])].encode() == image["class"]["text"]
        count += 1
    assert count == len(builder.as_dataset(split="train")) == 120
