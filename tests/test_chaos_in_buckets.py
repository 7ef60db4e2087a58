"""Runs on the Cloud Storage stand-in, by the real clients, killed at every request they send."""

import signal
import threading
from collections.abc import Iterator, Mapping

import pytest

from tests.children import start_child
from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What
from tests.invariants import check_output, data_files
from tests.memory_runs import FOREIGN, build_in_bucket, make_sources

REQUESTS_OF_A_RUN = 76
"""Requests of a run of 10 images into 4 shards.

Plan 6, claim the output 6, each shard 9 and 1 an image, commit 18.
"""
BEFORE, AFTER = What.RESET, What.LOST_REPLY
"""Whether the request at which the client is killed has no effect, or only its reply is lost."""


@pytest.fixture(scope="module")
def running(memory_served: None) -> Iterator[GcsStandIn]:
    sources = make_sources(num_images=10).store
    with GcsStandIn() as running, pytest.MonkeyPatch.context() as environment:
        for name, data in sources.files().items():
            if not name.startswith("out/"):
                running.put("in", name, data)
        environment.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


@pytest.fixture(scope="module")
def undisturbed(running: GcsStandIn) -> Mapping[str, bytes]:
    running.make_bucket("undisturbed")
    running.forget_requests()
    build_in_bucket(running.url, "gs://undisturbed/coco")
    assert len(running.requests) == REQUESTS_OF_A_RUN
    return output_of(running, "undisturbed")


def output_of(running: GcsStandIn, bucket: str) -> dict[str, bytes]:
    return {n.removeprefix("coco/"): data for n, data in running.objects(bucket).items()}


def kill_at(running: GcsStandIn, bucket: str, nth: int, what: What) -> int | None:
    """Run in a child that gets SIGKILL at its n-th request; return its exit code."""
    is_started = threading.Event()

    def strike() -> None:
        assert is_started.wait(30)
        child.kill()

    running.inject(Fault(what, after=nth - 1, strike=strike))
    child = start_child(build_in_bucket, running.url, f"gs://{bucket}/coco")
    is_started.set()
    child.join(60)
    running.heal()
    return child.exitcode


KILLS = [(nth, what) for nth in range(1, REQUESTS_OF_A_RUN + 1) for what in (BEFORE, AFTER)]
SOME = [(8, AFTER), (30, BEFORE), (51, AFTER), (73, BEFORE)]


@pytest.mark.parametrize(
    ("nth", "what"),
    [
        pytest.param(*kill, marks=pytest.mark.thorough if kill in SOME else pytest.mark.chaos)
        for kill in KILLS
    ],
)
def test_resumes_after_a_kill_at_any_request(
    nth: int, what: What, running: GcsStandIn, undisturbed: Mapping[str, bytes]
) -> None:
    bucket = f"{what.name.lower()}-{nth}"
    for name, data in FOREIGN.items():
        running.put(bucket, f"coco/{name}", data)
    assert kill_at(running, bucket, nth, what) == -signal.SIGKILL
    left = output_of(running, bucket)
    check_output(left, undisturbed, FOREIGN)
    running.forget_requests()
    build_in_bucket(running.url, f"gs://{bucket}/coco")
    assert check_output(output_of(running, bucket), undisturbed, FOREIGN)
    read = [r for r in running.requests if r.kind is Kind.READ and r.name.endswith(".jpg")]
    shards_left = 4 - len(data_files(left))
    assert len(read) in range(2 * shards_left, 3 * shards_left + 1)
