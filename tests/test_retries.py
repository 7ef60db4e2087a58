"""Retries and the rate of requests, in virtual time."""

import itertools
import math
import random

import pytest

from beam_tfrec.schemas.faults import find_fault
from beam_tfrec.transforms.storage.retries import THROTTLED, RequestRate, retry


class Clock:
    """A clock that only sleeping and operations move."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.now_s += seconds

    def retry(self, failures: float, error: BaseException, takes_s: float = 0) -> int:
        """Return the number of tries of an operation that fails this many times."""
        tries = itertools.count(1)

        def operation() -> int:
            self.now_s += takes_s
            number = next(tries)
            if number <= failures:
                raise error
            return number

        def is_timeout(error: Exception) -> bool:
            return isinstance(error, TimeoutError)

        return retry(operation, is_timeout, "gs://b/a", clock=self, sleep=self.sleep)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_waits_are_even_below_a_bound_that_doubles_up_to_30_s() -> None:
    bounds_s = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    random.seed(0)
    shares: list[float] = []
    for _ in range(1000):  # full jitter spreads the retries of many workers
        clock = Clock()
        assert clock.retry(len(bounds_s), TimeoutError()) == len(bounds_s) + 1
        shares += [w / bound for w, bound in zip(clock.waits_s, bounds_s, strict=True)]
    in_tenths = [sum(tenth <= 10 * share < tenth + 1 for share in shares) for tenth in range(10)]
    assert sum(in_tenths) == len(shares)
    assert all(1000 < count < 1200 for count in in_tenths)


@pytest.mark.parametrize(("takes_s", "ends_s"), [(0, 900), (1000, 1000)])
def test_tries_end_by_elapsed_time(takes_s: float, ends_s: int, clock: Clock) -> None:
    with pytest.raises(RuntimeError) as raised:
        clock.retry(math.inf, TimeoutError("503"), takes_s)
    assert clock.now_s == pytest.approx(ends_s)
    what = f"still failing after {ends_s} s (TimeoutError: 503)"
    assert find_fault(str(raised.value)) == (
        "E-IO-RETRIES",
        f"E-IO-RETRIES gs://b/a: {what}; run again to resume when the storage works",
    )


@pytest.mark.parametrize("error", [FileNotFoundError("a"), MemoryError(), KeyboardInterrupt()])
def test_other_errors_are_raised_at_once(error: BaseException, clock: Clock) -> None:
    with pytest.raises(type(error)) as raised:
        clock.retry(1, error)
    assert raised.value is error
    assert clock.waits_s == []


@pytest.mark.parametrize(("failures", "takes_s", "left_s"), [(3, 0, 0), (3, 11, 889), (2, 60, 840)])
def test_long_retries_are_logged_once(
    failures: int, takes_s: float, left_s: int, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.retry(failures, TimeoutError("503\nmore"), takes_s)
    logged = f"retrying gs://b/a for up to {left_s} s more (TimeoutError: 503)"
    assert caplog.messages == ([logged] if left_s else [])


# --- the rate of requests ---


class Requests:
    """A rate of requests in virtual time."""

    def __init__(self, limit_per_s: float = math.inf) -> None:
        self.clock = Clock()
        self.rate = RequestRate(
            lambda error: isinstance(error, TimeoutError),  # stands for a 429
            limit_per_s,
            clock=self.clock,
            pause=self.clock.sleep,
        )
        THROTTLED.take(1)

    def serve(self, number: int, each_s: float = 0.01) -> None:
        """Make requests one after the other, each answered after a while."""
        for _ in range(number):
            with self.rate.request():
                self.clock.sleep(each_s)

    def refuse(self, error: type[Exception] = TimeoutError) -> None:
        with pytest.raises(error), self.rate.request():
            raise error

    def rate_after(self, seconds: float) -> float:
        self.clock.sleep(seconds)
        return self.rate.per_s()


@pytest.fixture
def requests() -> Requests:
    return Requests()


def test_requests_start_freely_until_a_store_throttles(requests: Requests) -> None:
    requests.serve(1000)
    requests.refuse(ConnectionResetError)
    requests.rate.sleep(5)
    assert (requests.clock.now_s, requests.rate.per_s()) == (pytest.approx(15.0), math.inf)
    assert THROTTLED.take(1) == 0


def test_a_refusal_lowers_the_rate_below_that_served(requests: Requests) -> None:
    requests.serve(500)  # 100 a second
    requests.refuse()
    curve = [requests.rate_after(seconds) for seconds in (0, 5, 5, 5, 5, 10, 10)]
    assert curve == pytest.approx([80, 97.5, 100, 102.5, 120, 480, 1920], rel=0.02)
    assert requests.rate_after(365 * 24 * 3600) > 1e15
    requests.rate.sleep(5)
    assert THROTTLED.take(1) == 5


def test_refusals_of_all_readers_at_once_count_once(requests: Requests) -> None:
    requests.serve(500)
    for _ in range(32):  # within some 0.4 s
        requests.refuse()
    assert requests.rate.per_s() == pytest.approx(80, rel=0.05)


def test_further_refusals_slow_down_to_one_request_a_second(requests: Requests) -> None:
    requests.serve(500)
    rates = []
    for _ in range(30):
        requests.refuse()
        rates.append(requests.rate.per_s())
        requests.clock.sleep(1.0)
    assert rates[:4] == pytest.approx([80, 34.4, 14.8, 6.4], rel=0.1)
    assert rates[-1] == pytest.approx(0.8)  # a request a second, less a fifth


SLOWED = {
    "18 replies are too few to measure": ([(18, 0.01)], math.inf),
    "19 replies are enough": ([(19, 0.01)], 0.8 * 100),
    "replies of one moment count as within a millisecond": ([(100, 0)], 80_000),
    "slow replies are measured over more seconds": ([(40, 0.5)], 0.8 * 2),
    "a pause before the last second does not count": ([(1, 10), (30, 0.02)], 0.8 * 50),
}


@pytest.mark.parametrize(("served", "per_s"), SLOWED.values(), ids=SLOWED)
def test_the_rate_after_a_refusal(
    served: list[tuple[int, float]], per_s: float, requests: Requests
) -> None:
    for number, each_s in served:
        requests.serve(number, each_s)
    requests.refuse()
    assert requests.rate.per_s() == pytest.approx(per_s, rel=0.25)


def test_a_limit_is_never_exceeded_and_its_waits_are_reported() -> None:
    """Waits are reported in whole seconds of one thread; the rest follows later."""
    requests = Requests(limit_per_s=50)
    requests.serve(476, each_s=0)
    assert requests.clock.now_s == pytest.approx(9.5, abs=0.01)
    assert [THROTTLED.take(threads) for threads in (4, 4)] == [2, 0]
    assert THROTTLED.take(1) in (1, 2)  # includes what earlier tests left
    requests.refuse()
    assert requests.rate_after(1000) == 50
