"""The whole command with everything on Google Cloud Storage, on the stand-in."""

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.coco_command import Run, check_committed, digests, run_coco, start_coco
from tests.conftest import rounds
from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What
from tests.gcs_stand_in.sources import SOURCES, put_sources
from tests.invariants import check_output, data_files
from transforms.storage import gcs

MakeCoco = Callable[..., tuple[Path, Path]]
SHARDS = ("--num_shards", "4")


@pytest.fixture
def sources(make_coco: MakeCoco) -> tuple[Path, Path]:
    return make_coco(40)


@pytest.fixture
def stand_in(sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    with GcsStandIn() as running:
        put_sources(running, sources)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


@pytest.fixture
def local(sources: tuple[Path, Path], tmp_path: Path) -> dict[str, str]:
    """The shards that the same run makes on disk."""
    images, annotations = sources
    out = tmp_path / "local"
    given = ("--images", images, "--annotations", annotations, "--output", out)
    assert run_coco(*given, *SHARDS).code == 0
    return shards_of(out)


def shards_of(folder: Path) -> dict[str, str]:
    """Return the shards' hashes; a plan tells of checksums that listings of a disk do not have."""
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


def test_the_shards_are_those_of_a_local_run(
    stand_in: GcsStandIn, local: dict[str, str], tmp_path: Path
) -> None:
    run = convert()

    assert run.code == 0, run.err
    out = downloaded(stand_in, tmp_path / "downloaded")
    assert shards_of(out) == local
    check_committed(out)


def test_local_sources_go_to_a_bucket_and_back(
    stand_in: GcsStandIn, sources: tuple[Path, Path], local: dict[str, str], tmp_path: Path
) -> None:
    images, annotations = sources
    up = ("--images", images, "--annotations", annotations, "--output", "gs://out/coco")
    assert run_coco(*up, *SHARDS).code == 0
    assert shards_of(downloaded(stand_in, tmp_path / "downloaded")) == local

    assert convert(output=str(tmp_path / "down")).code == 0
    assert shards_of(tmp_path / "down") == local


def test_each_image_is_read_once_and_nothing_deleted(stand_in: GcsStandIn) -> None:
    stand_in.allow("storage.objects.get", "storage.objects.list", "storage.objects.create")

    assert convert().code == 0

    images = [r for r in stand_in.requests if r.kind is Kind.READ and r.name.endswith(".jpg")]
    assert len(images) == len({request.name for request in images}) == 40
    assert stand_in.count(Kind.DELETE) == 0


def test_a_finished_run_repeated_reads_listings_only(stand_in: GcsStandIn) -> None:
    assert convert().code == 0
    for name, data in stand_in.objects("in").items():
        stand_in.put("in", name, data)  # rewritten with equal contents: new generations
    stand_in.forget_requests()

    again = convert()

    assert (again.code, again.out) == (0, "already complete: gs://out/coco/manifest.json\n")
    read = [r.name for r in stand_in.requests if r.kind is Kind.READ]
    assert read == ["coco/manifest.json"]
    assert stand_in.count(Kind.UPLOAD) == 0


def test_another_plan_is_refused_and_overwrite_takes_its_place(stand_in: GcsStandIn) -> None:
    assert convert().code == 0
    stand_in.put("out", "coco/notes.txt", b"of the user")
    before = stand_in.objects("out")

    refused = convert("--seed", "1")

    assert refused.ended == (5, "E-OUT-PLAN")
    assert "options seed was '0', is '1' now" in refused.fault
    assert stand_in.objects("out") == before
    assert convert("--seed", "1", "--overwrite").code == 0
    after = stand_in.objects("out")
    assert after["coco/notes.txt"] == b"of the user"
    assert json.loads(after["coco/manifest.json"])["plan"]["options"]["seed"] == "1"


def test_foreign_shards_are_refused_and_left_alone(stand_in: GcsStandIn) -> None:
    stand_in.put("out", "coco/train-00000-of-00009-7.tfrec", b"of another tool")

    assert convert().ended == (5, "E-OUT-FOREIGN")
    assert set(stand_in.objects("out")) == {"coco/train-00000-of-00009-7.tfrec"}


def test_a_run_that_failed_is_resumed_without_reading_finished_shards_again(
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
    images = [r for r in stand_in.requests if r.kind is Kind.READ and r.name.endswith(".jpg")]
    assert len(images) == 40 - 10 * finished


FLAKY = {
    "errors now and then": Fault(What.STATUS, status=503, times=3, after=7),
    "throttling": Fault(What.STATUS, Kind.READ, status=429, times=5, after=3),
    "resets": Fault(What.RESET, times=3, after=11),
    "lost replies of uploads": Fault(What.LOST_REPLY, Kind.UPLOAD, times=6),
    "short bodies": Fault(What.SHORT_BODY, Kind.READ, times=4, after=2),
    "truncated bodies": Fault(What.TRUNCATED_BODY, Kind.READ, times=4, after=2),
    "flipped bits": Fault(What.FLIPPED_BIT, Kind.READ, times=4, after=2),
}


@pytest.mark.parametrize("fault", FLAKY.values(), ids=FLAKY)
def test_what_passes_changes_nothing(
    fault: Fault, stand_in: GcsStandIn, local: dict[str, str], tmp_path: Path
) -> None:
    stand_in.inject(fault)

    run = convert()

    assert run.code == 0, run.err
    assert stand_in.faults_left() == []
    out = downloaded(stand_in, tmp_path / "downloaded")
    assert shards_of(out) == local
    assert check_committed(out)["splits"]["train"]["rejected"] == {}


def test_a_source_that_changes_meanwhile_ends_the_run(stand_in: GcsStandIn) -> None:
    def change_first(name: str) -> bool:
        if name == "photos/a007.jpg" and stand_in.get("in", name) != b"another":
            stand_in.put("in", name, b"another")
        return False

    stand_in.inject(Fault(What.RESET, Kind.READ, change_first))

    run = convert()

    assert run.ended == (6, "E-SRC-CHANGED")
    assert "gs://in/photos/a007.jpg: generation" in run.fault
    assert "coco/manifest.json" not in stand_in.objects("out")


def test_a_missing_bucket_or_file_is_one_line(stand_in: GcsStandIn) -> None:
    assert convert(output="gs://nowhere/coco").ended == (2, "E-ARG")
    other = ("--images", "gs://in/photos", "--annotations", "gs://in/none.json")
    missing = run_coco(*other, "--output", "gs://out/coco")
    assert missing.ended == (2, "E-ARG")
    assert "gs://in/none.json: no such file" in missing.fault
    assert stand_in.objects("out") == {}


def test_who_may_not_list_is_told_before_anything_is_made(stand_in: GcsStandIn) -> None:
    stand_in.allow("storage.objects.get", "storage.objects.create")

    run = convert()

    assert run.ended == (6, "E-IO-AUTH")
    assert "storage.objects.list" in run.fault
    assert stand_in.objects("out") == {}


def test_two_runs_at_once_make_one_data_set(
    stand_in: GcsStandIn, local: dict[str, str], tmp_path: Path
) -> None:
    arguments = (*SOURCES, "--output", "gs://out/coco", *SHARDS)
    environment = {"STORAGE_EMULATOR_HOST": stand_in.url}
    with ThreadPoolExecutor(2) as runs:
        both = list(
            runs.map(lambda _: start_coco(*arguments, **environment).communicate(), range(2))
        )

    assert all("40 records" in out or "already complete" in out for out, _ in both), both
    out = downloaded(stand_in, tmp_path / "downloaded")
    assert shards_of(out) == local
    check_committed(out)


@pytest.mark.parametrize("seed", rounds(few=1, many=5))
def test_runs_killed_at_any_moment_are_resumed(
    seed: int, stand_in: GcsStandIn, local: dict[str, str], tmp_path: Path
) -> None:
    """SIGKILL, at moments from the import of Beam to behind the manifest."""
    choose = random.Random(seed)
    stand_in.latency_s = 0.02
    arguments = (*SOURCES, *SHARDS, "--shards_in_flight", "1")
    started_s = time.monotonic()
    start_coco(
        *arguments, "--output", "gs://out/whole/coco", STORAGE_EMULATOR_HOST=stand_in.url
    ).communicate()
    undisturbed, run_s = files_below(stand_in, "whole/coco/"), time.monotonic() - started_s
    assert {n: sha256(d) for n, d in undisturbed.items() if n in local} == local
    moments: set[int] = set()
    for number in range(5):
        output = f"gs://out/{number}/coco"
        for _ in range(2):  # and once more while it resumes
            process = start_coco(*arguments, "--output", output, STORAGE_EMULATOR_HOST=stand_in.url)
            time.sleep(choose.uniform(0.3, 1.05) * run_s)
            process.kill()
            process.communicate()
            left = files_below(stand_in, f"{number}/coco/")
            check_output(left, undisturbed)
            moments.add(len(data_files(left)))

        run = run_coco(*arguments, "--output", output)

        assert run.code == 0, run.err
        assert check_output(files_below(stand_in, f"{number}/coco/"), undisturbed)
    assert len(moments) > 1, "every kill came before the first shard, or behind the last"


def files_below(stand_in: GcsStandIn, folder: str) -> dict[str, bytes]:
    objects = stand_in.objects("out")
    return {n.removeprefix(folder): objects[n] for n in objects if n.startswith(folder)}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_large_shards_are_uploaded_whole(
    stand_in: GcsStandIn, local: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs, "IN_ONE_REQUEST_BYTES", 1000)
    stand_in.inject(Fault(What.GONE), Fault(What.LOST_REPLY, Kind.RESUMABLE_PUT, after=3))

    run = convert()

    assert run.code == 0, run.err
    assert stand_in.faults_left() == []
    assert shards_of(downloaded(stand_in, tmp_path / "downloaded")) == local


def test_no_credentials_end_the_run_within_seconds(
    sources: tuple[Path, Path], no_credentials: None
) -> None:
    images, annotations = sources
    given = ("--images", images, "--annotations", annotations, "--output", "gs://out/coco")

    run = run_coco(*given, "--billing_project", "of-no-other-test")

    assert run.ended == (6, "E-IO-AUTH")
