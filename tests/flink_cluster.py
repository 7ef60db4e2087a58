"""A Flink cluster on this machine, Beam's job server, and workers in processes of their own.

Its parts are `make engines`' (tests/flink/pom.xml). The cluster is what Flink's `start-cluster.sh`
starts: a job manager and a task manager, each a JVM, which talk over the network.
"""

import functools
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers import children_of, free_port, serving, started, worker_pool

_HERE = Path(__file__).parent
PARTS = _HERE.parent / ".tools" / "flink"
JOB_SERVER_JAR = PARTS / "job-server.jar"
NUM_SLOTS = 2
_READY_S = 60


class FlinkCluster(NamedTuple):
    """A running cluster.

    Attributes:
        rest_port: of the job manager, where jobs are handed in and looked at.
        pool_port: where task managers ask for a worker.
        pool_pid: the process whose children the workers are.
    """

    rest_port: int
    pool_port: int
    pool_pid: int

    @property
    def flags(self) -> list[str]:
        """The flags of a job on all of its slots, each with a worker process of its own."""
        return [
            *("--runner", "FlinkRunner", "--flink_master", f"localhost:{self.rest_port}"),
            *("--environment_type", "EXTERNAL"),
            *("--environment_config", f"localhost:{self.pool_port}"),
            *("--parallelism", str(NUM_SLOTS), "--sdk_worker_parallelism", str(NUM_SLOTS)),
        ]

    def ask(self, path: str) -> Any:
        """Return what Flink's REST interface says."""
        with urllib.request.urlopen(f"http://localhost:{self.rest_port}/{path}") as reply:
            return json.load(reply)

    def failed_tasks(self) -> list[str]:
        """Return the names of the latest job's tasks that failed and were restarted."""
        latest = max(self.ask("jobs/overview")["jobs"], key=lambda job: int(job["start-time"]))
        history = self.ask(f"jobs/{latest['jid']}/exceptions")["exceptionHistory"]
        return [str(entry["taskName"]) for entry in history["entries"]]

    def workers(self) -> list[int]:
        """Return the process ids of the workers that run now."""
        return children_of(self.pool_pid)


@contextmanager
def flink_cluster(**environment: str) -> Iterator[FlinkCluster]:
    """Run a cluster from enter to exit; its workers get the environment's variables, too."""
    rpc_port = free_port()
    with ExitStack() as stack:
        entrypoint = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        rest_port = stack.enter_context(
            serving(lambda port: _flink(entrypoint, rpc_port, "-D", f"rest.port={port}"))
        )
        worker = _flink("org.apache.flink.runtime.taskexecutor.TaskManagerRunner", rpc_port)
        stack.callback(_stop, _start(worker))
        pool_port, pool_pid = stack.enter_context(
            started(functools.partial(worker_pool, **environment))
        )
        cluster = FlinkCluster(rest_port, pool_port, pool_pid)
        _wait_for_slots(cluster)
        yield cluster


@contextmanager
def job_server(cluster: FlinkCluster) -> Iterator[str]:
    """Run a job server for a cluster; gives its address."""

    def command(port: int) -> list[str]:
        return [
            *("java", f"@{_HERE / 'flink' / 'java_options'}", "-jar", str(JOB_SERVER_JAR)),
            *("--flink-master", f"http://localhost:{cluster.rest_port}"),
            *("--job-port", str(port), "--artifact-port", "0", "--expansion-port", "0"),
        ]

    with serving(command) as port:
        yield f"localhost:{port}"


def _flink(entrypoint: str, rpc_port: int, *settings: str) -> list[str]:
    return [
        *("java", f"@{_HERE / 'flink' / 'java_options'}", "-cp", f"{PARTS}/lib/*", entrypoint),
        *("--configDir", str(_HERE / "flink" / "conf")),
        *("-D", f"jobmanager.rpc.port={rpc_port}", *settings),
    ]


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def _wait_for_slots(cluster: FlinkCluster) -> None:
    deadline_s = time.monotonic() + _READY_S
    while cluster.ask("overview")["slots-available"] != NUM_SLOTS:
        assert time.monotonic() < deadline_s, "the task manager does not join the job manager"
        time.sleep(0.2)
