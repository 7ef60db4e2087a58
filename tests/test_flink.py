"""The command on a Flink cluster: bytes, exit codes, and a worker that is killed.

`make engines` fetches Flink and the parts of Beam's job server (tests/flink/pom.xml) with Maven;
see docs/flink.md. The cluster is what Flink's `start-cluster.sh` starts: a job manager and a task
manager, each a JVM, which talk over the network. Workers are processes of their own.
"""

import functools
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.coco_command import (
    PROJECT,
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
from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What
from tests.servers import busiest, children_of, free_port, started, worker_pool

CONFIG, PARTS = PROJECT / "tests/flink", PROJECT / ".tools/flink"
JOB_SERVER_JAR = PARTS / "job-server.jar"
JAVA = ("java", f"@{CONFIG / 'java_options'}")
NUM_SLOTS = 2
JOB_S, READY_S = 600, 60
pytestmark = pytest.mark.slow


class Flink(NamedTuple):
    """A cluster and a job server; its workers write gs:// to the stand-in.

    Attributes:
        flags: flags of a job on all slots, each with its own worker process.
        job_endpoint: address of the job server.
        rest_port: port of the job manager's REST interface.
        pool_pid: parent process of the workers.
        gcs: the stand-in.
    """

    flags: list[str]
    job_endpoint: str
    rest_port: int
    pool_pid: int
    gcs: GcsStandIn

    def run(self, *arguments: object) -> Run:
        """Run the command in its own process, and its job on the cluster."""
        given = (*arguments, *self.flags, "--job_endpoint", self.job_endpoint)
        return finish(start_coco(*given, STORAGE_EMULATOR_HOST=self.gcs.url), JOB_S)


def ask(rest_port: int, path: str) -> Any:
    """Return what Flink's REST interface says."""
    with urllib.request.urlopen(f"http://localhost:{rest_port}/{path}") as reply:
        return json.load(reply)


@pytest.fixture(scope="module")
def flink() -> Iterator[Flink]:
    if not JOB_SERVER_JAR.exists():
        pytest.skip("no .tools/flink; `make engines` fetches it, with Maven and Java 17")
    rpc_port = free_port()

    def part(entrypoint: str, *settings: str) -> list[str]:
        classes = ("-cp", f"{PARTS}/lib/*", f"org.apache.flink.runtime.{entrypoint}")
        rpc = ("--configDir", str(CONFIG / "conf"), "-D", f"jobmanager.rpc.port={rpc_port}")
        return [*JAVA, *classes, *rpc, *settings]

    def manager(port: int) -> list[str]:
        entrypoint = "entrypoint.StandaloneSessionClusterEntrypoint"
        return part(entrypoint, "-D", f"rest.port={port}")

    with ExitStack() as stack:
        gcs = stack.enter_context(GcsStandIn())
        gcs.make_bucket("out")
        rest, _ = stack.enter_context(started(manager))
        tasks = subprocess.Popen(
            part("taskexecutor.TaskManagerRunner"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(tasks.wait)
        stack.callback(tasks.terminate)
        pool = functools.partial(worker_pool, STORAGE_EMULATOR_HOST=gcs.url)
        pool_port, pool_pid = stack.enter_context(started(pool))
        deadline_s = time.monotonic() + READY_S
        while ask(rest, "overview")["slots-available"] != NUM_SLOTS:
            assert time.monotonic() < deadline_s, "the task manager does not join the job manager"
            time.sleep(0.2)

        def job_server(port: int) -> list[str]:
            at = ("--flink-master", f"http://localhost:{rest}", "--job-port", str(port))
            others = ("--artifact-port", "0", "--expansion-port", "0")
            return [*JAVA, "-jar", str(JOB_SERVER_JAR), *at, *others]

        flags = [
            *("--runner", "FlinkRunner", "--flink_master", f"localhost:{rest}"),
            *("--environment_type", "EXTERNAL"),
            *("--environment_config", f"localhost:{pool_port}"),
            *("--parallelism", str(NUM_SLOTS), "--sdk_worker_parallelism", str(NUM_SLOTS)),
        ]
        job_port, _ = stack.enter_context(started(job_server))
        yield Flink(flags, f"localhost:{job_port}", rest, pool_pid, gcs)


def test_a_rerun_with_a_larger_budget_equals_a_run_in_process(
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


def test_a_killed_worker_is_replaced_and_bytes_stay_the_same(
    flink: Flink, make_coco: MakeCoco, tmp_path: Path
) -> None:
    """The command starts the job server itself, since it gets no `--job_endpoint`."""
    images, shards, there = make_coco(900), ("--num_shards", 450), tmp_path / "there"
    assert run_coco(*command(images, tmp_path / "here", *shards)).code == 0
    jar = ("--flink_job_server_jar", JOB_SERVER_JAR, "--job_server_jvm_properties=-Xmx512m")
    process = start_coco(*command(images, there, *shards), *REPORTED, *flink.flags, *jar)
    while process.poll() is None and len(shard_paths(there)) < 20:
        time.sleep(0.002)
    workers, visible = children_of(flink.pool_pid), len(shard_paths(there))
    assert len(workers) >= 2, "each slot has a worker process of its own"
    os.kill(busiest(workers), signal.SIGKILL)  # idle ones may belong to ended stages
    run = finish(process, JOB_S)
    assert run.code == 0, run.err
    assert visible < 450
    jobs = ask(flink.rest_port, "jobs/overview")["jobs"]
    latest = max(jobs, key=lambda job: int(job["start-time"]))["jid"]
    history = ask(flink.rest_port, f"jobs/{latest}/exceptions")["exceptionHistory"]
    failed = [str(entry["taskName"]) for entry in history["entries"]]
    assert [task for task in failed if "WriteShards/Write" in task], "the job did not notice"
    check_committed(there)
    assert digests(there) == digests(tmp_path / "here")


def test_worker_faults_print_one_line_and_set_the_exit_code(
    flink: Flink, thirty_images: Sources, tmp_path: Path
) -> None:
    (images, annotations), out = thirty_images, tmp_path / "out"
    (tmp_path / "none").mkdir()
    (tmp_path / "broken.json").write_text("{")
    missing = flink.run(*command((tmp_path / "none", annotations), out))
    broken = flink.run(*command((images, tmp_path / "broken.json"), out))
    assert [missing.ended, broken.ended] == [(3, "E-SET-MISSING"), (3, "E-ANN-JSON")]
    third = "coco/train-00002-of-00004-7.tfrec"
    flink.gcs.inject(Fault(What.STATUS, Kind.UPLOAD, third, status=403, times=None))
    given = ("--images", images, "--annotations", annotations, "--output", "gs://out/coco")
    refused = flink.run(*given, "--num_shards", 4, "--max_rejected", 1)
    assert refused.ended == (6, "E-IO-AUTH")
    assert "coco/manifest.json" not in flink.gcs.objects("out")
