"""The whole command on Google Cloud Storage: the stand-in, and fake-gcs-server if it is there."""

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter

from beam_tfrec.pipelines import coco
from beam_tfrec.pipelines.data_set import build
from beam_tfrec.transforms.storage import retries
from tests.coco_command import MakeCoco, Run, Sources, committed, run_coco, shard_paths
from tests.gcs_stand_in import SOURCES, Fault, GcsStandIn, Kind, What, put_sources
from tests.invariants import check_committed
from tests.stores import EMULATOR, fake_gcs_bucket

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


def test_a_run_resumes_and_a_rerun_reads_the_manifest_only(
    sources: Sources, stand_in: GcsStandIn, tmp_path: Path
) -> None:
    committed(sources, tmp_path / "local", *SHARDS)
    stand_in.allow("storage.objects.get", "storage.objects.list", "storage.objects.create")
    stand_in.inject(Fault(What.STATUS, Kind.UPLOAD, status=403, after=9))
    assert convert().ended == (6, "E-IO-AUTH")
    kept = sum(name.endswith(".tfrec") for name in stand_in.objects("out"))
    stand_in.forget_requests()
    assert convert().code == 0
    made = {name.removeprefix("coco/"): data for name, data in stand_in.objects("out").items()}
    check_committed(made)  # with its own plan, which holds checksums of sources
    shards = shard_paths(tmp_path / "local")
    assert [made[path.name] for path in shards] == [path.read_bytes() for path in shards]
    read = [r.name for r in stand_in.requests if r.kind is Kind.READ and r.name.endswith(".jpg")]
    assert len(read) == len({*read}) == 40 - 10 * kept
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


@pytest.mark.thorough
@pytest.mark.usefixtures("stand_in")
def test_throttling_is_reported_to_the_runner(tmp_path: Path) -> None:
    """So that Dataflow adds no workers while a store cannot serve the present ones."""
    limits = ("--readers", "1", "--max_reads_per_second", "14")
    given = [*SOURCES, "--output", str(tmp_path / "out"), "--num_shards", "2", *limits]
    retries.THROTTLED.add(100)  # earlier waits, for instance of listings
    pipeline = beam.Pipeline(runner="FnApiRunner")
    build(pipeline, coco.run.configure(given)[0])
    result = pipeline.run()
    result.wait_until_finish()
    throttled = MetricsFilter().with_name("cumulativeThrottlingSeconds")
    (counter,) = result.metrics().query(throttled)["counters"]
    assert counter.key.metric.namespace == "beam_tfrec"
    assert 1 <= counter.result <= 3  # forty images at 14 a second, less on a busy machine


@pytest.mark.thorough
@pytest.mark.skipif(not EMULATOR, reason="FAKE_GCS_SERVER names none; .ci/run installs one")
def test_a_whole_run_on_fake_gcs_server(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emulator that we did not write."""
    images, annotations = sources
    committed(sources, tmp_path / "local", *SHARDS)
    with fake_gcs_bucket() as (address, bucket):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        for path in images.iterdir():
            bucket.blob(f"photos/{path.name}").upload_from_filename(path)
        bucket.blob("instances.json").upload_from_filename(annotations)
        at = f"gs://{bucket.name}"
        given = ("--images", f"{at}/photos", "--annotations", f"{at}/instances.json", *SHARDS)
        run = run_coco(*given, "--output", f"{at}/out")
        assert run.code == 0, run.err
        again = run_coco(*given, "--output", f"{at}/out")
        assert again.out == f"already complete: {at}/out/manifest.json\n"
        for path in shard_paths(tmp_path / "local"):
            assert bucket.blob(f"out/{path.name}").download_as_bytes() == path.read_bytes()
