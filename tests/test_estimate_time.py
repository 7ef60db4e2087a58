"""How long a run is expected to take, and what it is expected to shuffle."""

from dataclasses import replace

from tests.test_sample_cost import MOST_GROUPED_BYTES, boxes_only
from transforms.forecast.estimate_time import (
    Speed,
    Work,
    cpu_seconds,
    measure_speed,
    report_seconds,
    shuffled_bytes,
    writing_seconds,
)
from transforms.forecast.try_records import Trial, Tried
from transforms.gate import GateLimits

WORK = Work(records=5000, files=5000, source_bytes=793_000_000, bytes=796_000_000, shards=16)
QUICK, SLOW = Speed(1.2e9, 2), Speed(0.3e9, 2)
NONE_READ = Trial([], 0.0, images_read=False)


def test_files_that_pass_take_their_bytes() -> None:
    """By the benchmarks some 1.5 s on the quiet machine, planning aside."""
    assert 1.0 < writing_seconds(WORK, NONE_READ, QUICK) < 3.0
    assert 3.0 < writing_seconds(WORK, NONE_READ, SLOW) < 8.0
    more = replace(WORK, bytes=10 * WORK.bytes, source_bytes=10 * WORK.source_bytes)
    assert writing_seconds(more, NONE_READ, QUICK) > 15


def test_what_was_tried_tells_of_the_rest() -> None:
    """50 images in 2 s, of 5,000."""
    sample = boxes_only()
    source_bytes = 50 * sample.blobs[0].read_bytes
    trial = Trial([Tried(sample, 9000)] * 50, 2.0, images_read=True)
    work = Work(5000, 5000, 100 * source_bytes, 5000 * 9000, 16)
    assert 200 <= writing_seconds(work, trial, QUICK) < 205
    assert 400 <= cpu_seconds(work, trial, QUICK) < 405


def test_stores_elsewhere_are_waited_for() -> None:
    far = replace(WORK, far_reads=True)
    assert writing_seconds(far, NONE_READ, QUICK) > 793e6 / 100e6
    assert cpu_seconds(far, NONE_READ, QUICK) > cpu_seconds(WORK, NONE_READ, QUICK)
    small = replace(far, source_bytes=5000)  # then requests are what takes time
    assert writing_seconds(small, NONE_READ, QUICK) > 5000 * 0.03 / 32
    both = replace(far, far_writes=True)
    assert writing_seconds(both, NONE_READ, QUICK) > 15


def test_this_machine_is_measured() -> None:
    speed = measure_speed(GateLimits(workers=1))
    assert speed.workers == 1
    assert 1e6 < speed.bytes_per_s < 1e12


def test_shuffled_bytes_are_those_of_the_coders() -> None:
    samples = [boxes_only(number) for number in range(64)]
    one = shuffled_bytes(samples, 64, joins=1)
    assert 0.8 * MOST_GROUPED_BYTES < one / 64 <= MOST_GROUPED_BYTES
    assert shuffled_bytes(samples, 6400, joins=1) == 100 * one
    assert shuffled_bytes(samples, 64, joins=2) > 1.25 * one
    assert shuffled_bytes([], 0, joins=1) == 0


def test_a_report_has_so_many_pictures_at_most() -> None:
    assert report_seconds(0, QUICK) == 0
    assert 0.3 < report_seconds(72, QUICK) / QUICK.slower < 0.5
    assert report_seconds(72, QUICK) == report_seconds(10**9, QUICK) > report_seconds(1, QUICK)
