"""The whole command with everything on Google Cloud Storage, on the stand-in."""

from pathlib import Path

import pytest

from tests.coco_command import MakeCoco, Run, Sources, digests, run_coco
from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What
from tests.gcs_stand_in.sources import SOURCES, put_sources

SHARDS = ("--num_shards", "4")


@pytest.fixture
def sources(make_coco: MakeCoco) -> Sources:
    return make_coco(40)


@pytest.fixture
def stand_in(stand_in: GcsStandIn, sources: Sources) -> GcsStandIn:
    put_sources(stand_in, sources)
    return stand_in


@pytest.fixture
def local(sources: Sources, tmp_path: Path) -> dict[str, str]:
    """The shards that the same run makes on disk."""
    images, annotations = sources
    out = tmp_path / "local"
    given = ("--images", images, "--annotations", annotations, "--output", out)
    assert run_coco(*given, *SHARDS).code == 0
    return shards_of(out)


def shards_of(folder: Path) -> dict[str, str]:
    """Return the shards' hashes only: plans of buckets hold checksums, plans of disks do not."""
    return {name: sha256 for name, sha256 in digests(folder).items() if name.endswith(".tfrec")}


def convert(*flags: str, output: str = "gs://out/coco") -> Run:
    return run_coco(*SOURCES, "--output", output, *SHARDS, *flags)


def downloaded(stand_in: GcsStandIn, folder: Path) -> Path:
    """Return the output as a folder on disk."""
    for name, data in stand_in.objects("out").items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "coco"


def images_read(stand_in: GcsStandIn) -> list[str]:
    read = (request.name for request in stand_in.requests if request.kind is Kind.READ)
    return [name for name in read if name.endswith(".jpg")]


def test_each_image_is_read_once_and_a_rerun_reads_the_manifest_only(stand_in: GcsStandIn) -> None:
    stand_in.allow("storage.objects.get", "storage.objects.list", "storage.objects.create")
    assert convert().code == 0
    assert len(images_read(stand_in)) == len({*images_read(stand_in)}) == 40
    assert stand_in.count(Kind.DELETE) == 0
    for name, data in stand_in.objects("in").items():
        stand_in.put("in", name, data)  # rewritten with equal contents: new generations
    stand_in.forget_requests()
    again = convert()
    assert (again.code, again.out) == (0, "already complete: gs://out/coco/manifest.json\n")
    read = [r.name for r in stand_in.requests if r.kind is Kind.READ]
    assert read == ["coco/manifest.json"]
    assert stand_in.count(Kind.UPLOAD) == 0


def test_a_resumed_run_reads_no_images_of_finished_shards(
    stand_in: GcsStandIn, local: dict[str, str], tmp_path: Path
) -> None:
    third = "coco/train-00002-of-00004-10.tfrec"
    stand_in.inject(Fault(What.STATUS, Kind.UPLOAD, third, status=403))
    assert convert("--shards_in_flight", "1").ended == (6, "E-IO-AUTH")
    assert "coco/manifest.json" not in stand_in.objects("out")
    finished = sum(name.endswith(".tfrec") for name in stand_in.objects("out"))
    stand_in.forget_requests()
    resumed = convert()
    assert resumed.code == 0, resumed.err
    assert shards_of(downloaded(stand_in, tmp_path / "downloaded")) == local
    assert len(images_read(stand_in)) == 40 - 10 * finished


def test_without_the_right_to_list_nothing_is_written(stand_in: GcsStandIn) -> None:
    stand_in.allow("storage.objects.get", "storage.objects.create")
    run = convert()
    assert run.ended == (6, "E-IO-AUTH")
    assert "storage.objects.list" in run.fault
    assert stand_in.objects("out") == {}
