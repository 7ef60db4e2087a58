"""What shards are expected to hold, from outlines and tried records."""

import pytest

from schemas.faults import Rejected
from schemas.run_plan import ShardForecast, served_hosts
from schemas.samples import Blob, Sample
from transforms.forecast.estimate_sizes import Line, fit_line, forecast_shards
from transforms.forecast.outline_shards import ShardOutline, choose_tried, trial_digest
from transforms.forecast.try_records import Trial, Tried

REJECTED = Rejected(code="E-EX-EMPTY", stage="plan", split="train", key="1")


def sample(key: str, size: int = 1000) -> Sample:
    return Sample("train", key, 0, (Blob("train", f"{key}.jpg", size),), b"")


def record_bytes(of: Sample) -> int:
    """An estimate that is 20 bytes off, and counts each letter of the key twice."""
    return of.blobs[0].size_bytes + 80 + 2 * len(of.key)


def outline(index: int, samples: list[Sample], tried: list[Sample]) -> ShardOutline:
    files_bytes = sum(found.blobs[0].size_bytes for found in samples)
    estimated = sum(map(record_bytes, samples))
    reads = {"train": (len(samples), files_bytes)}
    return ShardOutline("train", index, len(samples), files_bytes, estimated, reads, [], tried)


def test_records_beside_their_files_follow_the_tried_ones() -> None:
    """A record takes 100 bytes and one for each letter of its key, beside its file."""
    first = [sample("a", 500), sample("bb", 700), sample("ccc", 900)]
    second = [sample("dddd", 10_000), sample("eeeee", 20_000)]
    tried = [Tried(s, s.blobs[0].size_bytes + 100 + len(s.key)) for s in first[:2]]
    found = forecast_shards(
        [outline(0, first, first[:2]), outline(1, second, [])],
        Trial(tried, images_read=False),
        record_bytes,
    )
    assert found == {
        ("train", 0): ShardForecast(3, 500 + 101 + 700 + 102 + 900 + 103),
        ("train", 1): ShardForecast(2, 10_000 + 104 + 20_000 + 105),
    }


def test_converted_records_follow_the_estimate_as_a_whole() -> None:
    samples = [sample(key, 1000 * place) for place, key in enumerate("abcd", start=1)]
    tried = [Tried(s, record_bytes(s) // 2) for s in samples[:2]]
    shards = [outline(0, samples, samples[:2])]
    found = forecast_shards(shards, Trial(tried, images_read=True), record_bytes)
    assert found["train", 0].bytes == sum(record_bytes(s) // 2 for s in samples)


def test_as_many_of_the_others_are_rejects() -> None:
    samples = [sample(key) for key in "abcdefgh"]
    tried = [Tried(s, 500) for s in samples[:3]] + [Tried(samples[3], 0, REJECTED)]
    shards = [outline(0, samples[:4], samples[:4]), outline(1, samples[4:], [])]
    found = forecast_shards(shards, Trial(tried, images_read=True), record_bytes)
    assert found == {("train", 0): ShardForecast(4, 1500), ("train", 1): ShardForecast(4, 1500)}


def test_without_any_record_the_estimate_stands() -> None:
    samples = [sample("a"), sample("b")]
    trial = Trial([Tried(s, None) for s in samples], images_read=False)
    found = forecast_shards([outline(0, samples, samples)], trial, record_bytes)
    assert found == {("train", 0): ShardForecast(2, sum(map(record_bytes, samples)))}


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(0, 5), (10, 25)], Line(5.0, 2.0)),
        ([(0, 25), (10, 5)], Line(15.0, 0.0)),  # which would say that larger files make less
        ([(4, 7)], Line(7.0, 0.0)),
    ],
)
def test_lines(points: list[tuple[float, float]], line: Line) -> None:
    assert fit_line(points) == line


def test_the_same_samples_are_tried_whatever_their_order() -> None:
    samples = [sample(str(n)) for n in range(1000)]
    chosen = choose_tried(samples)
    assert len(chosen) == 256
    assert chosen == choose_tried(reversed(samples))
    assert max(map(trial_digest, chosen)) < 2**64 * 0.35  # of the smallest digests, evenly drawn


@pytest.mark.parametrize(
    ("records", "hosts"),
    [
        ([7] * 12, [1, 2, 3, 4, 6, 12]),
        ([8, 8, 7, 7], [1, 2, 4]),
        ([8, 7, 7, 7, 7, 7], [1, 2, 3, 6]),
        ([9, 9, 9, 2], [1]),  # filled one by one: the last shard is short
        ([5], [1]),
    ],
)
def test_hosts_that_get_alike(records: list[int], hosts: list[int]) -> None:
    assert served_hosts(records) == hosts
