import functools
import random
import threading
import time
from collections.abc import Callable

import pytest

from beam_tfrec.transforms.gate import GateLimits, WorkerGate

MIB = 2**20
SOON_S = 30
"""Longer waits count as a deadlock."""


class Meter:
    """Models memory: an item's bytes count from its read until its consumer is done."""

    def __init__(self, limit: int = 100 * MIB, fails_at: int | None = None) -> None:
        self.peak_bytes = 0
        self.peak_reads = 0
        self.reading = 0
        self.faults: list[str] = []
        self._limit = limit
        self._fails_at = fails_at
        self._held: list[int] = []
        self._lock = threading.Lock()

    def read(self, size: int) -> str:
        with self._lock:
            self._held.append(size)
            self.reading += 1
            held = sum(self._held)
            self.peak_bytes = max(self.peak_bytes, held)
            self.peak_reads = max(self.peak_reads, self.reading)
            if held > self._limit and len(self._held) > 1:
                self.faults.append(f"{self._held} held, the limit is {self._limit}")
        time.sleep(0)  # let others run
        with self._lock:
            self.reading -= 1
        if size == self._fails_at:
            raise OSError(f"cannot read {size}")
        return f"bytes of {size}"

    def consume(self, gate: WorkerGate, sizes: list[int], stop: int | None = None) -> list[int]:
        """Return the sizes received, in order, up to a given place or a failed read."""
        came = []
        results = gate.in_order(sizes, int, self.read)
        try:
            for size, data in results:
                assert data == f"bytes of {size}"
                if len(came) == stop:
                    break
                came.append(size)
                with self._lock:
                    self._held.remove(size)
        except OSError as error:
            assert str(error) == f"cannot read {self._fails_at}"
        results.close()
        assert came == sizes[: len(came)]
        return came


def gate_of(limit: int, readers: int = 2) -> WorkerGate:
    return WorkerGate(GateLimits(2, limit, readers))


def run_threads(*targets: Callable[[], object]) -> None:
    """Run all at once; fail when they do not end, or when one of them fails."""
    errors: list[BaseException] = []

    def run(target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[target], daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + SOON_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert errors == []


def assert_all_bytes_are_free(gate: WorkerGate, limit: int) -> None:
    """Read an item of the whole budget: it would wait forever if bytes were still reserved."""
    run_threads(lambda: list(gate.in_order([limit], int, str)))


@pytest.mark.parametrize(
    ("sizes", "limit"),
    [
        ([MIB] * 40, 4 * MIB),
        ([MIB - 1, 1, MIB // 3] * 20, 3 * MIB),  # several items to a megabyte
        ([3 * MIB, 2 * MIB, MIB] * 10, 3 * MIB),  # the largest needs the whole limit
        ([1000] * 5000, 2 * MIB),
        ([0] * 10, MIB),
        # Items larger than the limit go alone.
        ([MIB, MIB, 9 * MIB, MIB, MIB, 5 * MIB, 6 * MIB, MIB], 4 * MIB),
    ],
)
@pytest.mark.parametrize("readers", [1, 4])
def test_bytes_in_flight_stay_within_the_limit(sizes: list[int], limit: int, readers: int) -> None:
    meter = Meter(limit)
    assert meter.consume(gate_of(limit, readers), sizes) == sizes
    assert meter.faults == []
    assert meter.peak_bytes <= max(limit, *sizes)


@pytest.mark.parametrize("readers", [1, 3])
def test_each_reader_reads_one_image_at_a_time(readers: int) -> None:
    together, meter = threading.Barrier(readers), Meter()

    def read(size: int) -> str:
        together.wait(SOON_S)  # passes only if all readers are here
        return meter.read(size)

    list(gate_of(100 * MIB, readers).in_order([2 * MIB] * 3 * readers, int, read))
    assert meter.peak_reads <= readers


@pytest.mark.parametrize("ends_early", [False, True])
def test_shards_that_share_a_small_budget_do_not_deadlock(ends_early: bool) -> None:
    """Not even when a read fails or a consumer stops early."""
    choose = random.Random(ends_early)
    for _ in range(150):
        limit = choose.choice([2, 3, 5]) * MIB
        gate = gate_of(limit, readers=choose.randint(1, 4))
        shards = [
            [choose.randint(1, limit * 3 // 2) for _ in range(choose.randint(1, 12))]
            for _ in range(choose.randint(2, 4))
        ]
        meter = Meter(limit, choose.choice(shards[0]) if ends_early else None)
        stops = [choose.choice([None, 0, 1, 3]) if ends_early else None for _ in shards]
        consume = functools.partial(meter.consume, gate)
        run_threads(*map(functools.partial, [consume] * len(shards), shards, stops))
        assert ends_early or meter.faults == []
        assert meter.reading == 0, "a reader still works on a shard that has ended"
        assert_all_bytes_are_free(gate, limit)


def test_a_read_error_is_raised_in_order() -> None:
    limit = 4 * MIB
    gate, meter = gate_of(limit, readers=4), Meter(limit, fails_at=MIB + 3)
    assert meter.consume(gate, [MIB + place for place in range(8)]) == [MIB, MIB + 1, MIB + 2]
    assert meter.reading == 0
    assert_all_bytes_are_free(gate, limit)


@pytest.mark.parametrize("name", ["shards_in_flight", "bytes_in_flight", "readers", "workers"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0: give a larger"):
        GateLimits(**{name: 0})


@pytest.mark.parametrize(
    ("cores", "limits", "remote", "readers"),
    [
        (1, GateLimits(), False, 2),
        (8, GateLimits(), False, 8),
        (8, GateLimits(), True, 64),  # waiting for a store needs no core
        (96, GateLimits(), True, 96),
        (8, GateLimits(workers=3), False, 3),
        (8, GateLimits(readers=5), True, 5),
    ],
)
def test_number_of_readers_depends_on_cores_and_storage(
    monkeypatch: pytest.MonkeyPatch, cores: int, limits: GateLimits, remote: bool, readers: int
) -> None:
    monkeypatch.setattr("beam_tfrec.transforms.gate.usable_cores", lambda: cores)
    assert WorkerGate(limits, remote=remote).readers == readers


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_limit_the_images_processed_at_once(workers: int) -> None:
    gate = WorkerGate(GateLimits(readers=6, workers=workers))
    all_here, meter = threading.Barrier(workers), Meter()

    def work(*_: object) -> str:
        with gate.working:
            all_here.wait(SOON_S)  # times out if fewer get in
            return meter.read(MIB)

    at_once = range(2 * gate.readers)  # all are submitted, so that none waits for the consumer
    list(gate.in_order(at_once, lambda _: MIB, work))
    assert meter.peak_reads <= workers
