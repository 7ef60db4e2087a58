"""How reads slow down for a store that throttles, in virtual time."""

import heapq
import itertools
import math
import random
from collections.abc import Iterator

import pytest

from transforms.storage import Access
from transforms.storage.request_rate import THROTTLED, RequestRate, WaitedTime, rate_of


class TooManyError(Exception):
    """A store's refusal."""


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def waited() -> WaitedTime:
    return WaitedTime()


def make_rate(clock: Clock, waited: WaitedTime, limit_per_s: float = math.inf) -> RequestRate:
    def is_throttling(error: Exception) -> bool:
        return isinstance(error, TooManyError)

    return RequestRate(is_throttling, limit_per_s, clock=clock, sleep=clock.sleep, waited=waited)


def serve(rate: RequestRate, clock: Clock, number: int, each_s: float = 0.01) -> None:
    """Make requests one after the other, each answered after a while."""
    for _ in range(number):
        with rate.request():
            clock.sleep(each_s)


def refuse(rate: RequestRate) -> None:
    with pytest.raises(TooManyError), rate.request():
        raise TooManyError


def test_requests_start_freely_until_a_store_throttles(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited)

    serve(rate, clock, 1000)

    assert (clock.now_s, rate.per_s()) == (pytest.approx(10.0), math.inf)
    assert waited.take(1) == 0


def test_a_throttled_reply_slows_down_below_what_was_served(
    clock: Clock, waited: WaitedTime
) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 500)  # 100 a second

    refuse(rate)

    curve = [rate_after(rate, clock, seconds) for seconds in (0, 5, 5, 5, 5, 10, 10)]
    assert curve == pytest.approx([80, 97.5, 100, 102.5, 120, 480, 1920], rel=0.02)


@pytest.mark.parametrize("hours", [1, 2, 24, 24 * 365])
def test_hours_after_a_store_throttled_it_is_as_if_it_never_had(
    hours: float, clock: Clock, waited: WaitedTime
) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 500)
    refuse(rate)

    clock.sleep(hours * 3600)

    assert rate.per_s() > 1e15


def rate_after(rate: RequestRate, clock: Clock, seconds: float) -> float:
    clock.sleep(seconds)
    return rate.per_s()


def test_replies_to_what_was_sent_before_slow_down_once(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 500)

    for _ in range(32):  # all readers hear of it, within some 0.4 s
        refuse(rate)

    assert rate.per_s() == pytest.approx(80, rel=0.05)


def test_a_store_that_gives_nothing_at_most_halves_the_rate_each_second(
    clock: Clock, waited: WaitedTime
) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 500)
    rates = []
    for _ in range(30):
        refuse(rate)
        rates.append(rate.per_s())
        clock.sleep(1.0)

    assert rates[:4] == pytest.approx([80, 34.4, 14.8, 6.4], rel=0.1)
    assert rates[-1] == pytest.approx(0.8)  # a request a second, less a fifth


def test_a_reply_that_takes_ten_times_the_usual_slows_down(
    clock: Clock, waited: WaitedTime
) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 100, each_s=0.2)
    serve(rate, clock, 1, each_s=1.9)
    assert rate.per_s() == math.inf

    serve(rate, clock, 1, each_s=2.5)

    assert rate.per_s() < 5


def test_a_quick_store_may_be_slow_for_a_second(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 100)
    serve(rate, clock, 1, each_s=0.99)
    assert rate.per_s() == math.inf

    serve(rate, clock, 1, each_s=1.01)
    assert rate.per_s() < 100


def test_what_is_usual_follows_the_store(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 100, each_s=0.2)
    serve(rate, clock, 200, each_s=0.5)

    serve(rate, clock, 1, each_s=3.0)

    assert rate.per_s() == math.inf


def test_other_errors_slow_nothing_down(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 100)

    with pytest.raises(ConnectionResetError), rate.request():
        raise ConnectionResetError

    assert rate.per_s() == math.inf


def test_a_limit_is_never_exceeded(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited, limit_per_s=50)

    serve(rate, clock, 101, each_s=0.001)

    assert clock.now_s == pytest.approx(2.0, abs=0.01)
    refuse(rate)
    clock.sleep(1000)
    assert rate.per_s() == 50


def test_waits_are_told_in_whole_seconds_of_one_thread(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited, limit_per_s=10)

    serve(rate, clock, 96, each_s=0.0)  # 9.5 s

    assert [waited.take(4), waited.take(4), waited.take(1)] == [2, 0, 1]


def test_tries_again_are_waits_once_the_store_throttles(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited)
    rate.sleep(5)
    assert waited.take(1) == 0
    serve(rate, clock, 20)
    refuse(rate)

    rate.sleep(5)

    assert (clock.now_s, waited.take(1)) == (pytest.approx(10.2), 5)


def test_an_error_among_few_replies_says_nothing(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited)
    for _ in range(5):
        refuse(rate)
        serve(rate, clock, 2)

    assert rate.per_s() == math.inf


@pytest.mark.parametrize(("served", "slows_down"), [(18, False), (19, True)])
def test_twenty_replies_say_something(
    served: int, slows_down: bool, clock: Clock, waited: WaitedTime
) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, served)

    refuse(rate)

    assert (rate.per_s() < math.inf) is slows_down


def test_replies_of_one_moment_are_measured_as_those_of_a_millisecond(
    clock: Clock, waited: WaitedTime
) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 100, each_s=0.0)

    refuse(rate)

    assert rate.per_s() == pytest.approx(0.8 * 100 * 1000)


def test_few_replies_a_second_are_measured_over_more(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 40, each_s=0.5)

    refuse(rate)

    assert rate.per_s() == pytest.approx(0.8 * 2, rel=0.1)


def test_a_pause_before_the_last_second_is_not_measured(clock: Clock, waited: WaitedTime) -> None:
    rate = make_rate(clock, waited)
    serve(rate, clock, 1)
    clock.sleep(10)
    serve(rate, clock, 30, each_s=0.02)

    refuse(rate)

    assert rate.per_s() == pytest.approx(0.8 * 50, rel=0.1)


def test_a_process_has_one_rate_a_bucket() -> None:
    assert rate_of("b", bool, 0) is rate_of("b", bool, 0)
    assert rate_of("b", bool, 0) is not rate_of("c", bool, 0)
    assert (rate_of("b", bool, 0).per_s(), rate_of("b", bool, 5).per_s()) == (math.inf, 5)


def test_what_any_rate_waits_is_told_of_the_process(clock: Clock) -> None:
    THROTTLED.take(1)
    rate = RequestRate(bool, 0.5, clock=clock, sleep=clock.sleep)

    serve(rate, clock, 3, each_s=0.0)

    assert THROTTLED.take(1) in (4, 5)  # one may begin with the rest of a second


@pytest.mark.parametrize("value", [-1, math.inf, math.nan])
def test_a_limit_must_be_a_number_of_requests(value: float) -> None:
    with pytest.raises(ValueError, match=r"max_reads_per_second must be a number .*: give one"):
        Access(max_reads_per_second=value)


class Bucket:
    """A token bucket that holds a second's worth, as stores have it."""

    def __init__(self, quota_per_s: float) -> None:
        self._quota_per_s = self._tokens = quota_per_s
        self._filled_s = 0.0

    def take(self, now_s: float) -> bool:
        filled = self._tokens + (now_s - self._filled_s) * self._quota_per_s
        self._tokens, self._filled_s = min(filled, self._quota_per_s), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def simulate(workers: int, threads: int, quota_per_s: float, total_s: float) -> tuple[float, float]:
    """Let workers read from one bucket; return the used and the refused part of its quota.

    Each thread makes one request after the other, answered after 20 to 45 ms, and waits with full
    jitter before it repeats a refused one. The first second, a full bucket's, does not count.
    """
    choose, clock, numbers = random.Random(0), Clock(), itertools.count()
    bucket = Bucket(quota_per_s)
    rates = [make_rate(Clock(), WaitedTime()) for _ in range(workers)]
    served = refused = 0
    events: list[tuple[float, int, RequestRate, Iterator[None] | None, float]] = []

    def add(at_s: float, rate: RequestRate, request: object, bound_s: float) -> None:
        heapq.heappush(events, (at_s, next(numbers), rate, request, bound_s))  # type: ignore[misc]

    for rate in rates * threads:
        add(choose.uniform(0, 0.1), rate, None, 0.1)
    while events[0][0] < total_s:
        clock.now_s, _, rate, request, bound_s = heapq.heappop(events)
        own_clock = rate._clock
        assert isinstance(own_clock, Clock)
        own_clock.now_s = clock.now_s
        if request is None:
            begun = rate.request()
            begun.__enter__()  # moves its clock to the request's turn
            add(own_clock.now_s + choose.uniform(0.02, 0.045), rate, begun, bound_s)
        elif bucket.take(clock.now_s):
            request.__exit__(None, None, None)  # type: ignore[attr-defined]
            served += clock.now_s > 1
            add(clock.now_s, rate, None, 0.1)
        else:
            error = TooManyError()
            with pytest.raises(TooManyError):
                request.__exit__(TooManyError, error, None)  # type: ignore[attr-defined]
                raise error
            refused += clock.now_s > 1
            add(clock.now_s + choose.uniform(0, bound_s), rate, None, min(2 * bound_s, 30))
    quota = quota_per_s * (total_s - 1)
    return served / quota, refused / quota


@pytest.mark.parametrize(
    ("workers", "threads", "quota_per_s"),
    [(1, 32, 500), (16, 32, 500), (100, 8, 500), (2, 32, 1500)],
)
def test_workers_that_know_nothing_of_each_other_share_a_quota(
    workers: int, threads: int, quota_per_s: float
) -> None:
    used, refused = simulate(workers, threads, quota_per_s, total_s=30)

    assert 0.9 <= used <= 1.05
    assert refused < 0.25
