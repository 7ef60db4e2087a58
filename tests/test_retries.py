import random

import pytest

from pipelines.command import guarded
from schemas.faults import find_fault
from tests.coco_command import settings_kept
from transforms.retries import DEADLINE_S, retry


class VirtualClock:
    """Time that passes only by sleeping, and by what an operation is said to take."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.waits_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.now_s += seconds


class Flaky:
    """An operation that fails a number of times, each try taking a while."""

    def __init__(
        self, clock: VirtualClock, failures: float, error: Exception, takes_s: float = 0
    ) -> None:
        self.tries = 0
        self._clock = clock
        self._failures = failures
        self._error = error
        self._takes_s = takes_s

    def __call__(self) -> str:
        self.tries += 1
        self._clock.now_s += self._takes_s
        if self.tries <= self._failures:
            raise self._error
        return "done"


def is_timeout(error: Exception) -> bool:
    return isinstance(error, TimeoutError)


def run(clock: VirtualClock, operation: Flaky, deadline_s: float = DEADLINE_S) -> str:
    return retry(
        operation,
        is_timeout,
        lambda: "gs://b/a.jpg",
        deadline_s=deadline_s,
        clock=clock,
        sleep=clock.sleep,
    )


def test_what_succeeds_is_not_waited_for() -> None:
    clock = VirtualClock()

    assert run(clock, Flaky(clock, 0, TimeoutError())) == "done"
    assert clock.waits_s == []


@pytest.mark.parametrize("failures", [1, 2, 20])
def test_transient_errors_are_tried_again(failures: int) -> None:
    clock = VirtualClock()
    operation = Flaky(clock, failures, TimeoutError())

    assert run(clock, operation) == "done"
    assert operation.tries == failures + 1
    assert len(clock.waits_s) == failures


def test_each_wait_is_below_a_bound_that_doubles_up_to_30_s() -> None:
    bounds_s = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]
    for _ in range(200):
        clock = VirtualClock()
        run(clock, Flaky(clock, len(bounds_s), TimeoutError()))

        assert all(0 <= w <= bound for w, bound in zip(clock.waits_s, bounds_s, strict=True))


def test_waits_fill_the_whole_range_below_their_bound() -> None:
    # Full jitter: what is retried by many at once must spread over all of the time.
    random.seed(0)
    shares: list[float] = []
    for _ in range(1000):
        clock = VirtualClock()
        run(clock, Flaky(clock, 3, TimeoutError()))
        shares += [w / bound for w, bound in zip(clock.waits_s, (0.1, 0.2, 0.4), strict=True)]

    in_tenths = [sum(tenth <= 10 * share < tenth + 1 for share in shares) for tenth in range(10)]
    assert all(250 < count < 350 for count in in_tenths)


def test_tries_end_by_elapsed_time() -> None:
    clock = VirtualClock()
    operation = Flaky(clock, float("inf"), TimeoutError("503"))

    with pytest.raises(RuntimeError) as raised:
        run(clock, operation, deadline_s=900)

    assert clock.now_s == pytest.approx(1900)
    assert find_fault(str(raised.value)) == (
        "E-IO-RETRIES",
        "E-IO-RETRIES gs://b/a.jpg: still failing after 900 s (TimeoutError: 503);"
        " run again to resume when the storage is well",
    )
    assert isinstance(raised.value.__cause__, TimeoutError)


@pytest.mark.parametrize(
    ("failures", "takes_s", "told"),
    [
        (3, 0, []),
        (3, 11, ["retrying gs://b/a.jpg for up to 889 s more (TimeoutError: 503)"]),
        (2, 60, ["retrying gs://b/a.jpg for up to 840 s more (TimeoutError: 503)"]),
    ],
)
def test_long_retries_are_told_once(
    failures: int, takes_s: float, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    run(clock, Flaky(clock, failures, TimeoutError("503\nmore"), takes_s))

    assert caplog.messages == told


def test_retries_are_told_before_the_wait_that_outlasts_10_s(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    told_at_s: list[float] = []

    def sleep(seconds: float) -> None:
        told_at_s.extend([clock.now_s - 1000] * (len(caplog.messages) - len(told_at_s)))
        clock.sleep(seconds)

    operation = Flaky(clock, 20, TimeoutError())
    retry(operation, is_timeout, lambda: "a.jpg", clock=clock, sleep=sleep)
    assert len(told_at_s) == 1
    assert told_at_s[0] <= 10


def test_an_outage_that_stops_all_threads_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(argv: object) -> None:
        for _ in range(64):
            clock = VirtualClock()
            run(clock, Flaky(clock, 1, TimeoutError("503"), takes_s=60))

    with settings_kept():
        assert guarded(stopped, []) == 0
    assert capsys.readouterr().err.splitlines() == [
        "retrying gs://b/a.jpg for up to 840 s more (TimeoutError: 503)"
    ]


def test_no_wait_reaches_beyond_the_deadline() -> None:
    for _ in range(100):
        clock = VirtualClock()
        with pytest.raises(RuntimeError, match="E-IO-RETRIES"):
            run(clock, Flaky(clock, float("inf"), TimeoutError()), deadline_s=1)
        assert clock.now_s == pytest.approx(1001)


def test_a_try_that_outlasts_the_deadline_is_the_last() -> None:
    clock = VirtualClock()
    operation = Flaky(clock, float("inf"), TimeoutError(), takes_s=1000)

    with pytest.raises(RuntimeError, match="still failing after 1000 s"):
        run(clock, operation, deadline_s=900)

    assert operation.tries == 1
    assert clock.waits_s == []


@pytest.mark.parametrize("error", [FileNotFoundError("a.jpg"), ValueError("bug"), MemoryError()])
def test_permanent_errors_pass_at_once(error: Exception) -> None:
    clock = VirtualClock()
    operation = Flaky(clock, 1, error)

    with pytest.raises(type(error)) as raised:
        run(clock, operation)

    assert raised.value is error
    assert operation.tries == 1
    assert clock.waits_s == []


def test_a_permanent_error_behind_transient_ones_passes() -> None:
    clock = VirtualClock()
    errors = [TimeoutError(), FileNotFoundError("a.jpg")]

    def operation() -> None:
        raise errors.pop(0)

    with pytest.raises(FileNotFoundError, match=r"a\.jpg"):
        retry(operation, is_timeout, lambda: "a.jpg", clock=clock, sleep=clock.sleep)


def test_being_interrupted_is_no_reason_to_try_again() -> None:
    clock = VirtualClock()

    def operation() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retry(operation, lambda _: True, lambda: "a.jpg", clock=clock, sleep=clock.sleep)
    assert clock.waits_s == []
