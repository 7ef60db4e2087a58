"""Image sources that read the images out of the records of an earlier data set."""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from beam_tfrec.pipelines import coco, folder, pairs, sidecar, table
from tests.coco_command import (
    MakeCoco,
    Sources,
    check_committed,
    command,
    committed_by,
    counts,
    digests,
    rejected_of,
    run_coco,
    run_pipeline,
    shard_paths,
)
from tests.conftest import jpeg_bytes, thorough
from tests.side_folders import labelme, shape, write_side_files
from tests.small_runs import build_run, plan_run

Job = tuple[Callable[[Sequence[str]], None], Path, list[object], list[object]]
"""Command, folder of images, and flags of the old and the new annotations."""


def correct(annotations: Path) -> Path:
    """Return a copy of an annotation file with another class and box of one object."""
    spec = json.loads(annotations.read_bytes())
    spec["annotations"][3] |= {"category_id": 1, "bbox": [2.0, 3.0, 20.0, 11.0]}
    path = annotations.with_name("corrected.json")
    path.write_bytes(msgspec.json.encode(spec))
    return path


def rows_of_table(tmp_path: Path) -> tuple[Path, Path]:
    """Write a table whose rows share images, in sub-folders, and one row without an image."""
    photos = tmp_path / "photos"
    lines = ["name,score"]
    for number in range(9):
        name = f"{number % 2}/{number // 2}.jpg"
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(jpeg_bytes(color=number))
        lines += [f"{name},{number}", f"{name},{number + 50}"]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    return photos, tmp_path / "rows.csv"


def coco_job(tmp_path: Path, make_coco: MakeCoco) -> Job:
    images, annotations = make_coco(12)
    old = ["--annotations", annotations]
    return coco.run, images, old, ["--annotations", correct(annotations)]


def keras_job(tmp_path: Path, make_coco: MakeCoco) -> Job:
    run, images, old, new = coco_job(tmp_path, make_coco)
    layout = ["--layout", "keras"]  # a record per object, so each image is stored twice
    return run, images, [*old, *layout], [*new, *layout]


def sidecar_job(tmp_path: Path, _: MakeCoco) -> Job:
    names = [f"{place % 2}/{place}" for place in range(8)]
    images, labels = write_side_files(tmp_path, dict.fromkeys(names, labelme(shape())))
    corrected = tmp_path / "corrected"
    shutil.copytree(labels, corrected)
    (corrected / "1/3.json").write_text(json.dumps(labelme(shape("dog"), shape())))
    return sidecar.run, images, ["--annotations", labels], ["--annotations", corrected]


def table_job(tmp_path: Path, _: MakeCoco) -> Job:
    images, rows = rows_of_table(tmp_path)
    corrected = tmp_path / "corrected.csv"
    corrected.write_text(rows.read_text().replace(",54", ",55"))
    return (
        table.run,
        images,
        *(["--table", path, "--image_column", "name"] for path in (rows, corrected)),
    )


def built(sources: Sources, output: Path) -> Path:
    """Write a data set of one shard, without Beam, and return it."""
    build_run(plan_run(*sources, output, num_shards=1))
    return output


@pytest.mark.parametrize("job", [coco_job, *map(thorough, (sidecar_job, table_job, keras_job))])
def test_shards_are_those_of_a_fresh_build(
    job: Callable[..., Job], tmp_path: Path, make_coco: MakeCoco
) -> None:
    run, images, old_flags, new_flags = job(tmp_path, make_coco)
    flag = "--image_root" if run is table.run else "--images"
    shared = ("--num_shards", 3, "--no_report")
    old, new, fresh = (tmp_path / name for name in ("old", "new", "fresh"))
    committed_by(run, old, flag, images, *old_flags, *shared)
    committed_by(run, fresh, flag, images, *new_flags, *shared)
    shutil.rmtree(images)
    if run is sidecar.run:
        planned = run_pipeline(run, flag, old, *new_flags, *shared, "--output", new, "--plan")
        assert (planned.code, new.exists()) == (0, False), planned.err
    committed_by(run, new, flag, old, *new_flags, *shared)
    assert digests(new, "*.tfrec") == digests(fresh, "*.tfrec") != digests(old, "*.tfrec")

    again = run_pipeline(run, flag, old, *new_flags, *shared, "--output", new)
    assert again.out == f"already complete: {new}/manifest.json\n"


def test_a_second_run_finishes_and_compares_images(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(12)
    old, new = built((images, annotations), tmp_path / "old"), tmp_path / "new"
    arguments = command((old, correct(annotations)), new, "--num_shards", 4)
    assert run_coco(*arguments).code == 0
    finished = digests(new, "*.tfrec")
    for name in ("manifest.json", shard_paths(new)[1].name):
        (new / name).unlink()
    for shard in shard_paths(old):
        shard.touch()  # so that images of kept shards are read again
    assert run_coco(*arguments).code == 0
    assert digests(new, "*.tfrec") == finished
    check_committed(new)


@pytest.mark.thorough
def test_conversion_makes_the_bytes_of_a_fresh_build(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, resize = make_coco(5), ("--resize", 32)
    old, new, fresh = (tmp_path / name for name in ("old", "new", "fresh"))
    assert run_coco(*command(sources, old)).code == 0
    assert run_coco(*command(sources, fresh, *resize)).code == 0
    assert run_coco(*command((old, sources[1]), new, *resize)).code == 0
    assert digests(new, "*.tfrec") == digests(fresh, "*.tfrec")

    refused = run_coco(*command((fresh, sources[1]), tmp_path / "again"))
    assert refused.ended == (2, "E-ARG")
    assert "holds changed images (image_converted), which annotations do not fit" in refused.fault


@pytest.mark.thorough
def test_splits(make_coco: MakeCoco, tmp_path: Path) -> None:
    (train, of_train), (val, of_val) = make_coco(6), make_coco(4, "val")
    for place, path in enumerate(sorted(val.iterdir())):
        path.write_bytes(jpeg_bytes(color=place + 100))  # names are those of train
    given = [f"train={of_train}", f"val={of_val}"]
    old, new, one = (tmp_path / name for name in ("old", "new", "one"))
    images = ("--images", f"train={train}", f"val={val}")
    assert run_coco(*images, "--annotations", *given, "--output", old).code == 0
    images = ("--images", f"train={old}", f"val={old}")
    assert run_coco(*images, "--annotations", *given, "--output", new).code == 0
    assert digests(new, "*.tfrec") == digests(old, "*.tfrec")

    images = ("--images", f"other={old}", "--annotations", f"other={of_val}")
    refused = run_coco(*images, "--output", one)
    assert refused.ended == (2, "E-ARG")
    assert "has two images called a00" in refused.fault
    images = ("--images", old, "--annotations", of_val, "--split", "val", "--output", one)
    assert run_coco(*images).code == 0
    assert digests(one, "*.tfrec").items() <= digests(old, "*.tfrec").items()


def test_a_damaged_record_is_a_reject(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, new = make_coco(9), tmp_path / "new"
    old = built(sources, tmp_path / "old")
    arguments = command((old, sources[1]), new, "--num_shards", 3, "--max_rejected", 1)
    assert run_coco(*arguments).code == 0
    (shard,) = shard_paths(old)
    data = bytearray(shard.read_bytes())
    data[-100] ^= 1
    shard.write_bytes(data)
    compared = run_coco(*arguments)
    assert compared.ended == (6, "E-SRC-CHANGED")
    assert re.search("a004.jpg: has changed since .* was written; restore it", compared.fault)

    assert run_coco(*arguments, "--overwrite").code == 0
    (rejected,) = rejected_of(new)
    assert (rejected["code"], rejected["file_name"]) == ("E-REC-DAMAGED", "a004.jpg")
    assert re.match(rf"{shard.name} at byte \d+: the checksum of its ", rejected["detail"])
    assert sum(counts(new)) == 8


@pytest.mark.parametrize(
    ("name", "ended", "said"),
    [
        ("manifest.json", (2, "E-ARG"), "is not a finished data set: it has no manifest"),
        ("*.tfrec", (7, "E-VER-MISSING"), "tfrec: is missing; restore it, or give the"),
        ("index/*.parquet", (7, "E-VER-MISSING"), "parquet: is missing; restore it, or"),
    ],
)
def test_a_data_set_that_is_not_whole(
    name: str, ended: tuple[int, str], said: str, make_coco: MakeCoco, tmp_path: Path
) -> None:
    sources = make_coco(4)
    old = built(sources, tmp_path / "old")
    next(old.glob(name)).unlink()
    refused = run_coco(*command((old, sources[1]), tmp_path / "new"))
    assert (refused.ended, said in refused.fault) == (ended, True), refused.fault


@pytest.mark.thorough
def test_data_sets_without_one_source_image_a_record(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(4)
    two, tensors = tmp_path / "two", tmp_path / "tensors"
    shutil.copytree(images, tmp_path / "low")
    committed_by(pairs.run, two, "--low", tmp_path / "low", "--high", images)
    photos, _ = rows_of_table(tmp_path)
    committed_by(folder.run, tensors, "--images", photos, "--layout", "tensor", "--resize", "8x8")
    said: Mapping[Path, str] = {
        two: "has two images in a record",
        tensors: "has no image files in its records",
    }
    for old, what in said.items():
        refused = run_coco(*command((old, annotations), tmp_path / "new"))
        assert refused.ended == (2, "E-ARG")
        assert f"{old}: {what}; give another data set, or give the folder" in refused.fault


def test_another_program_s_manifest_is_a_file_among_photos(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    sources = make_coco(3)
    (sources[0] / "manifest.json").write_text("[1")
    assert run_coco(*command(sources, tmp_path / "out")).code == 0
