"""The whole command with everything on Google Cloud Storage, on the stand-in."""

from pathlib import Path

import pytest

from tests.coco_command import MakeCoco, Run, Sources, committed, run_coco, shard_paths
from tests.gcs_stand_in import GcsStandIn, Kind
from tests.gcs_stand_in.sources import SOURCES, put_sources
from tests.invariants import check_committed

SHARDS = ("--num_shards", "4")


@pytest.fixture
def sources(make_coco: MakeCoco) -> Sources:
    return make_coco(40)


@pytest.fixture
def stand_in(stand_in: GcsStandIn, sources: Sources) -> GcsStandIn:
    put_sources(stand_in, sources)
    return stand_in


def convert() -> Run:
    return run_coco(*SOURCES, "--output", "gs://out/coco", *SHARDS)


def test_each_image_is_read_once_and_a_rerun_reads_the_manifest_only(
    sources: Sources, stand_in: GcsStandIn, tmp_path: Path
) -> None:
    committed(sources, tmp_path / "local", *SHARDS)
    stand_in.allow("storage.objects.get", "storage.objects.list", "storage.objects.create")
    assert convert().code == 0
    made = {name.removeprefix("coco/"): data for name, data in stand_in.objects("out").items()}
    check_committed(made)  # with its own plan, which holds checksums of sources
    shards = shard_paths(tmp_path / "local")
    assert [made[path.name] for path in shards] == [path.read_bytes() for path in shards]
    read = [r.name for r in stand_in.requests if r.kind is Kind.READ and r.name.endswith(".jpg")]
    assert len(read) == len({*read}) == 40
    assert stand_in.count(Kind.DELETE) == 0
    for name, data in stand_in.objects("in").items():
        stand_in.put("in", name, data)  # rewritten with equal contents: new generations
    stand_in.forget_requests()
    again = convert()
    assert (again.code, again.out) == (0, "already complete: gs://out/coco/manifest.json\n")
    read = [r.name for r in stand_in.requests if r.kind is Kind.READ]
    assert read == ["coco/manifest.json"]
    assert stand_in.count(Kind.UPLOAD) == 0


def test_without_the_right_to_list_nothing_is_written(stand_in: GcsStandIn) -> None:
    stand_in.allow("storage.objects.get", "storage.objects.create")
    run = convert()
    assert run.ended == (6, "E-IO-AUTH")
    assert "storage.objects.list" in run.fault
    assert stand_in.objects("out") == {}
