import logging

import pytest

from pipelines.progress_display import Speed, Told
from transforms.progress import Progress


def test_speed_is_that_of_the_last_seconds() -> None:
    progress, speed = Progress(), Speed(over_s=10)
    found = []
    for now_s, done, written in [
        (0, 0, 0),
        (5, 50, 500),
        (10, 50, 500),
        (20, 250, 3500),
        (21, 0, 0),
    ]:
        progress.add_samples(done, 0, written)
        found.append(speed.measure(progress, now_s))
    assert found == [(0, 0), (10, 100), (10, 100), (25, 350), (250 / 11, 3500 / 11)]


def test_speed_of_no_time_is_none() -> None:
    progress, speed = Progress(), Speed(over_s=10)
    progress.add_samples(5, 0, 5)
    assert [speed.measure(progress, 7.0), speed.measure(progress, 7.0)] == [(0, 0), (0, 0)]


def test_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress()
    tell = Told(progress, "row")
    with caplog.at_level(logging.INFO):
        tell(0.0)  # nothing is planned yet, and so nothing is measured
        progress.plan(samples=4000, shards=2)
        for second in range(100, 165):
            tell(float(second))
            progress.add_samples(10, int(second == 101), 1_000_000)
            if second == 140:
                progress.add_shard()
    assert caplog.messages == [
        "300 of 4000 rows (7 %), 0 of 2 shards, 1 rejected; 10 rows/s, 1.0 MB/s, 06:10 left",
        "600 of 4000 rows (15 %), 1 of 2 shards, 1 rejected; 10 rows/s, 1.0 MB/s, 05:40 left",
    ]


def test_a_run_that_stands_still_promises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress()
    progress.plan(samples=1, shards=1)
    tell = Told(progress, "image")
    with caplog.at_level(logging.INFO):
        tell(0.0)
        tell(30.0)
    assert caplog.messages == [
        "0 of 1 image (0 %), 0 of 1 shard, 0 rejected; 0 images/s, 0.0 MB/s",
    ]
