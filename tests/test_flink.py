"""The command on a Flink cluster: bytes, exit codes, and a worker that is killed.

`make engines` fetches Flink and what Beam's job server is made of, with Maven; docs/flink.md.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.coco_command import (
    REPORTED,
    MakeCoco,
    Run,
    Sources,
    check_committed,
    command,
    digests,
    finish,
    run_coco,
    shard_paths,
    start_coco,
)
from tests.flink_cluster import JOB_SERVER_JAR, FlinkCluster, flink_cluster, job_server
from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What
from tests.servers import busiest

JOB_S = 600
pytestmark = pytest.mark.slow


class Flink(NamedTuple):
    """What a job needs: a cluster and a job server; its workers write gs:// to the stand-in."""

    cluster: FlinkCluster
    endpoint: str
    gcs: GcsStandIn

    def run(self, *arguments: object) -> Run:
        """Run the command as a process of its own, its job on the cluster."""
        there = ("--job_endpoint", self.endpoint)
        process = start_coco(
            *arguments, *self.cluster.flags, *there, STORAGE_EMULATOR_HOST=self.gcs.url
        )
        return finish(process, JOB_S)


@pytest.fixture(scope="module")
def flink() -> Iterator[Flink]:
    if not JOB_SERVER_JAR.exists():
        pytest.skip("no .tools/flink; `make engines` fetches it, with Maven and Java 17")
    with GcsStandIn() as gcs:
        gcs.make_bucket("out")
        with flink_cluster(STORAGE_EMULATOR_HOST=gcs.url) as cluster, job_server(cluster) as there:
            yield Flink(cluster, there, gcs)


def test_over_budget_then_accepted_with_the_bytes_of_a_run_in_process(
    flink: Flink, thirty_images: Sources, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    accepted = ("--num_shards", 4, "--max_rejected", 1)
    assert run_coco(*command(thirty_images, here, *accepted)).code == 0

    over = flink.run(*command(thirty_images, there, "--num_shards", 4))
    assert over.ended == (4, "E-BUDGET")
    written = {path: path.stat().st_mtime_ns for path in shard_paths(there)}
    run = flink.run(*command(thirty_images, there, *accepted), *REPORTED)

    assert run.code == 0, run.err
    assert run.out.startswith(f"{there}: 29 records in ")
    assert check_committed(there)["splits"]["train"]["rejected"] == {"E-IMG-TRUNCATED": 1}
    assert digests(there) == digests(here)
    assert {path: path.stat().st_mtime_ns for path in shard_paths(there)} == written


def test_a_worker_killed_among_the_shards_is_replaced_and_the_bytes_are_the_same(
    flink: Flink, make_coco: MakeCoco, tmp_path: Path
) -> None:
    """By a job server that the command starts itself, as it does without `--job_endpoint`."""
    thirty_images, shards = make_coco(900), ("--num_shards", 450)
    assert run_coco(*command(thirty_images, tmp_path / "here", *shards)).code == 0
    jar = ("--flink_job_server_jar", JOB_SERVER_JAR, "--job_server_jvm_properties=-Xmx512m")

    there = tmp_path / "there"
    given = (*command(thirty_images, there, *shards), *REPORTED)
    process = start_coco(*given, *flink.cluster.flags, *jar)
    while process.poll() is None and len(shard_paths(there)) < 20:
        time.sleep(0.002)
    workers, visible = flink.cluster.workers(), len(shard_paths(there))
    assert len(workers) >= 2, "each slot has a worker process of its own"
    os.kill(busiest(workers), signal.SIGKILL)  # others may be of stages that have ended
    run = finish(process, JOB_S)

    assert run.code == 0, run.err
    assert visible < 450
    lost = [task for task in flink.cluster.failed_tasks() if "WriteShards/Write" in task]
    assert lost, "the job never noticed"
    check_committed(there)
    assert digests(there) == digests(tmp_path / "here")


@pytest.mark.parametrize(
    ("images", "text", "code"),
    [("none", None, "E-SET-MISSING"), ("train-images", "{", "E-ANN-JSON")],
)
def test_faults_in_workers_are_one_line_with_their_exit_code(
    images: str, text: str | None, code: str, flink: Flink, thirty_images: Sources, tmp_path: Path
) -> None:
    (tmp_path / "none").mkdir()
    if text is not None:
        thirty_images[1].write_text(text)
    run = flink.run(*command((tmp_path / images, thirty_images[1]), tmp_path / "out"))
    assert run.ended == (3, code)


def test_a_refused_upload_ends_the_run(flink: Flink, thirty_images: Sources) -> None:
    images, annotations = thirty_images
    third = "coco/train-00002-of-00004-7.tfrec"
    flink.gcs.inject(Fault(What.STATUS, Kind.UPLOAD, third, status=403, times=None))
    run = flink.run(
        *("--images", images, "--annotations", annotations, "--output", "gs://out/coco"),
        *("--num_shards", 4, "--max_rejected", 1),
    )
    assert run.ended == (6, "E-IO-AUTH")
    assert "coco/manifest.json" not in flink.gcs.objects("out")
