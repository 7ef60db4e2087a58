"""A bucket that gives so many reads a second: nothing fails, and little is left unused."""

import functools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter

from pipelines import coco
from tests.children import outcome_of
from tests.coco_command import check_committed, run_coco
from tests.gcs_stand_in import GcsStandIn, Kind
from tests.gcs_stand_in.sources import SOURCES, put_sources
from transforms.storage import open_storage, retries

MakeCoco = Callable[..., tuple[Path, Path]]
IMAGES = 60


@pytest.fixture
def stand_in(make_coco: MakeCoco, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    with GcsStandIn() as running:
        put_sources(running, make_coco(IMAGES))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


def arguments(out: Path) -> list[str]:
    return [*SOURCES, "--output", str(out), "--num_shards", "2"]


def test_a_run_fits_into_a_quota(stand_in: GcsStandIn, tmp_path: Path) -> None:
    stand_in.limit(20)

    run = run_coco(*arguments(tmp_path / "out"))

    assert run.code == 0, run.err
    assert stand_in.count(Kind.READ, status=429) > 0
    assert check_committed(tmp_path / "out")["splits"]["train"]["records"] == IMAGES


def test_the_runner_is_told_how_long_a_store_made_it_wait(
    stand_in: GcsStandIn, tmp_path: Path
) -> None:
    """So that Dataflow adds no workers to a store that cannot serve those there are."""
    given = [*arguments(tmp_path / "out"), "--readers", "1", "--max_reads_per_second", "20"]
    config = coco.COMMAND.configure(given)[0]
    retries.THROTTLED.add(100)  # what was waited before, for instance by listings
    pipeline = beam.Pipeline(runner="FnApiRunner")
    coco.build(pipeline, config)

    result = pipeline.run()
    result.wait_until_finish()

    told = MetricsFilter().with_name("cumulativeThrottlingSeconds")
    (counter,) = result.metrics().query(told)["counters"]
    assert counter.key.metric.namespace == "beam_tfrec"
    assert 1 <= counter.result <= 3  # sixty images at 20 a second, less on a busy machine


def read_until(emulator: str, root: str, begin_s: float, end_s: float, threads: int) -> int:
    """Read objects over and over as one worker of many, and return how many; for a child.

    Args:
        emulator: address of the store; a child has the environment of an earlier moment.
        root: of the objects.
        begin_s: when all begin, by `time.time()`.
        end_s: when all end.
        threads: that read at once.
    """
    os.environ["STORAGE_EMULATOR_HOST"] = emulator
    storage = open_storage(root)
    (entry, *_) = storage.list()
    time.sleep(max(0.0, begin_s - time.time()))

    def read_on(_: int) -> int:
        count = 0
        while time.time() < end_s:
            count += len(storage.read(entry.name, entry)) == entry.size_bytes
        return count

    with ThreadPoolExecutor(threads) as readers:
        return sum(readers.map(read_on, range(threads)))


@pytest.mark.slow
def test_sixteen_workers_use_a_quota_up_and_none_fails(stand_in: GcsStandIn) -> None:
    workers, threads, quota_per_s, measured_s = 16, 4, 500, 10.0
    stand_in.put("many", "a.jpg", bytes(1000))
    begin_s = time.time() + 20  # sixteen imports on two cores take a while
    given = stand_in.url, "gs://many", begin_s, begin_s + 16, threads
    work = functools.partial(outcome_of, read_until, *given)
    with ThreadPoolExecutor(workers) as children:
        running = [children.submit(work) for _ in range(workers)]
        time.sleep(max(0.0, begin_s - 1 - time.time()))
        stand_in.limit(quota_per_s)
        time.sleep(max(0.0, begin_s + 4 - time.time()))
        before = stand_in.count(Kind.READ, 206)
        time.sleep(measured_s)
        served = stand_in.count(Kind.READ, 206) - before
        outcomes = [child.result() for child in running]

    assert all(isinstance(outcome, int) and outcome > 0 for outcome in outcomes), outcomes
    assert 0.9 <= served / (quota_per_s * measured_s) <= 1.05
