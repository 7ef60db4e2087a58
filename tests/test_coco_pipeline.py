"""COCO to records: every run writes the same bytes, and faults in files stop it."""

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from beam_tfrec.pipelines import coco
from beam_tfrec.pipelines.data_set import build
from beam_tfrec.schemas.manifest import Manifest
from beam_tfrec.transforms.shard_table import Sharding
from tests.coco_command import (
    DATA,
    MakeCoco,
    check_committed,
    committed,
    digests,
    examples,
    rejected_of,
    run_coco,
    value,
)
from tests.conftest import coco_dict, jpeg_bytes
from tests.faulty_sources import cut_off

SPLITS = ("train", "val")
MakePipeline = Callable[[], beam.Pipeline]


# Determinism: equal contents give equal bytes, whatever else differs between runs.


class Given(NamedTuple):
    """A data set of two splits, with something to repair, drop and reject."""

    folder: Path

    def arguments(self, out: Path, *flags: object) -> list[object]:
        return [
            *("--images", *(f"{split}={self.folder / split}" for split in SPLITS)),
            *("--annotations", *(f"{split}={self.folder / split}.json" for split in SPLITS)),
            *("--output", out, "--num_shards", "train=5", "val=2"),
            *("--orphans", "drop", "--max_rejected", "2", "--max_dropped", "2", *flags),
        ]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    folder = tmp_path_factory.mktemp("given")
    for split, num_images in (("train", 24), ("val", 9)):
        spec = coco_dict(num_images)
        (folder / split).mkdir(parents=True)
        for place, image in enumerate(spec["images"]):
            data = jpeg_bytes(color=place)
            if split == "train" and place == 3:
                data = data[:-20]
            if split == "train" and place == 7:
                data = b""
            (folder / split / image["file_name"]).write_bytes(data)
        spec["annotations"][4]["bbox"] = [60.0, 40.0, 9.0, 9.0]
        spec["annotations"][5]["bbox"] = [60.0, 40.0, 0.0, 9.0]
        spec["annotations"][8]["image_id"] = 999
        spec["annotations"][11]["id"] = spec["annotations"][10]["id"]
        (folder / f"{split}.json").write_text(json.dumps(spec))
    return Given(folder)


@pytest.fixture(scope="module")
def reference(given: Given) -> dict[str, str]:
    """SHA-256 of the files that every run must write."""
    out = given.folder / "reference"
    run = run_coco(*given.arguments(out))
    assert run.code == 0, run.err
    check_committed(out)
    assert Counter(line["code"] for line in rejected_of(out)) == {
        "E-IMG-TRUNCATED": 1,
        "E-IMG-EMPTY": 1,
        "E-ANN-ORPHAN": 2,
        "E-BOX-EMPTY": 2,
    }
    found = digests(out, *DATA)
    assert len([name for name in found if name.endswith(".tfrec")]) == 7
    return found


def test_same_bytes_from_a_shuffled_copy_elsewhere(
    given: Given, reference: dict[str, str], tmp_path: Path
) -> None:
    """The copy is written in another order, so it is listed in another; its mtimes differ."""
    copy = tmp_path / "a copy, elsewhere"
    for split in SPLITS:
        (copy / split).mkdir(parents=True)
        for number, path in enumerate(sorted((given.folder / split).iterdir(), reverse=True)):
            shutil.copyfile(path, copy / split / path.name)
            os.utime(copy / split / path.name, (10**9, 10**9 + number))
        spec = json.loads((given.folder / f"{split}.json").read_bytes())
        for section in ("images", "annotations", "categories"):
            random.Random(0).shuffle(spec[section])
        (copy / f"{split}.json").write_text(json.dumps(spec))
    run = run_coco(*Given(copy).arguments(tmp_path / "out"))
    assert run.code == 0, run.err
    assert digests(tmp_path / "out", *DATA) == reference


# Faults and names.


NAMES = [
    *("with space.jpg", " lead.jpg", "trail .jpg", "caf\u00e9.jpg", "\U0001f600.jpg"),
    *("new\nline.jpg", "tab\t.jpg", "\u202egpj.jpg", "a[1].jpg", "*.jpg", "q?.jpg", "{x}.jpg"),
    *("-dash.jpg", "%20.jpg", "a&b;$(c).jpg", "con'q\"uote.jpg", "back\\slash.jpg", ".hidden.jpg"),
    *("sub/dir/x.jpg", "sub/x.jpg", "~/x.jpg", "a=b.jpg", "no extension", "x" * 251 + ".jpg"),
]


def test_file_names_are_taken_literally(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Globs, line breaks, dashes and leading dots have no special meaning."""

    def rename(spec: dict) -> None:
        for image, name in zip(spec["images"], NAMES, strict=True):
            path = tmp_path / "train-images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "train-images" / image["file_name"]).rename(path)
            image["file_name"] = name

    sources, out = make_coco(len(NAMES), edit=rename), tmp_path / "out"
    cut_off(sources[0] / "new\nline.jpg")
    committed(sources, out, "--max_rejected", 1)
    expected = {name: (sources[0] / name).read_bytes() for name in NAMES if "\n" not in name}
    found = {
        value(example, "image/filename")[0].decode(): value(example, "image/encoded")[0]
        for example in examples(out)
    }
    assert found == expected
    assert [line["file_name"] for line in rejected_of(out)] == ["new\nline.jpg"]


# As a library.


def config_of(sources: tuple[Path, Path], out: Path, **more: Any) -> coco.CocoConfig:
    images, annotations = sources
    return coco.CocoConfig(
        {"train": str(images)}, {"train": [str(annotations)]}, output=str(out), **more
    )


def test_build_in_a_users_pipeline(
    make_coco: MakeCoco, tmp_path: Path, test_pipeline: MakePipeline
) -> None:
    """The manifest is an element like any other, and the bytes are the command's."""
    sources = make_coco(9)
    sharding = Sharding(num_shards={"": 2})
    with test_pipeline() as pipeline:
        manifests = build(pipeline, config_of(sources, tmp_path / "out", sharding=sharding))
        records = manifests | "CountRecords" >> beam.FlatMap(records_of_shards)
        assert_that(records, equal_to([5, 4]))
    check_committed(tmp_path / "out")
    committed(sources, tmp_path / "by_command", "--num_shards", 2, "--no_report")
    assert digests(tmp_path / "out") == digests(tmp_path / "by_command")


def records_of_shards(manifest: Manifest) -> list[int]:
    return [shard.records for shard in manifest.shards]


def test_a_configuration_needs_an_output() -> None:
    with pytest.raises(ValueError, match=r"^output must not be empty, got ''"):
        coco.CocoConfig({"train": "i"}, {"train": ["a"]}, output="")
