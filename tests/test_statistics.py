"""Counts and histograms that add up, whatever the order and the sharding."""

import contextlib
import math
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import groupby, pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import statistics, statistics_collector
from schemas.feature_roles import BoxForm, ObjectRoles, Roles
from schemas.features import Kind
from schemas.manifest import from_json, to_json
from schemas.statistics import (
    MAX_SHARD_SAMPLES,
    NO_STATISTICS,
    SAMPLES_PER_CLASS,
    SAMPLES_PER_SPLIT,
    SampledRecord,
    Statistics,
    StatisticsSum,
    add_statistics,
    bin_start,
    count_bin,
    draw_samples,
    expected_runs,
    log_bin,
    share_bin,
    whole_bin,
)
from schemas.statistics_collector import StatisticsCollector, StoredPicture
from schemas.tensors import encode_tensor

YXYX = Roles(objects=(ObjectRoles(BoxForm.YXYX, ("box",), "label"),))
PIXELS = Roles(objects=(ObjectRoles(BoxForm.XYWH_PX, ("box",), "label"),))
EDGES = Roles(objects=(ObjectRoles(BoxForm.EDGES, ("l", "t", "r", "b"), "label"),))
CLASS = Roles(class_label="label")
PHOTO = StoredPicture("jpeg", 640, 480, 100_000)


def floats(*values: float) -> tuple[Kind, list[float]]:
    return Kind.FLOAT, list(values)


def ints(*values: int) -> tuple[Kind, list[int]]:
    return Kind.INT64, list(values)


def edges(*lists: Any) -> dict[str, Any]:
    return {key: (Kind.FLOAT, values) for key, values in zip("ltrb", lists, strict=True)}


def collected(roles: Roles, *records: dict[str, Any], **more: Any) -> Statistics:
    """Return the statistics of records, whose keys are their numbers."""
    return collector_of(roles, *records, **more).statistics()


def collector_of(
    roles: Roles, *records: dict[str, Any], pictures: Any = (), labels: Any = ()
) -> StatisticsCollector:
    collector = StatisticsCollector("train", roles)
    for number, values in enumerate(records):
        collector.add(values, pictures, labels, (100 * number, 100, str(number)))
    return collector


def without_samples(found: Statistics) -> Statistics:
    return msgspec.structs.replace(found, samples=[])


# --- bins ---


@given(st.floats(min_value=5e-324, max_value=1.7e308), st.sampled_from([1, 2, 3, 4, 8]))
def test_a_value_is_in_the_bin_that_begins_at_it_or_below(value: float, per_octave: int) -> None:
    found = log_bin(value, per_octave)
    assert Fraction(value) ** per_octave >= Fraction(2) ** found
    assert Fraction(value) ** per_octave < Fraction(2) ** (found + 1)


@given(st.integers(-1000, 1000), st.sampled_from([1, 2, 3, 4, 8]))
def test_a_bin_s_first_value_is_in_it_and_the_one_before_is_not(bin: int, per_octave: int) -> None:
    start = bin_start(bin, per_octave)
    assert log_bin(start, per_octave) == bin
    assert log_bin(math.nextafter(start, 0), per_octave) == bin - 1


@given(st.integers(1, 2**50), st.sampled_from([1, 2, 4]))
def test_whole_numbers_have_the_bins_of_all(value: int, per_octave: int) -> None:
    assert whole_bin(value, per_octave) == log_bin(value, per_octave)


@given(st.floats(min_value=1e-300, max_value=1.0))
def test_a_share_has_the_bin_of_its_root(share: float) -> None:
    found = share_bin(share)  # the root is in it where the share is between the squares
    assert Fraction(2) ** found <= Fraction(share) < Fraction(2) ** (found + 1)
    assert bin_start(found, 2) == pytest.approx(math.sqrt(2.0**found))


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_what_has_no_logarithm_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"value must be above 0 and finite, got .*: leave"):
        log_bin(value, 2)


def test_objects_are_counted_one_by_one_to_16() -> None:
    counts = (0, 1, 15, 16, 17, 31, 32, 33, 1000)
    assert [count_bin(count) for count in counts] == [0, 1, 15, 16, 16, 16, 32, 32, 512]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_expected_runs_are_the_mean_over_all_orders(counts: list[int]) -> None:
    classes = [name for name, count in enumerate(counts) for _ in range(count)]
    orders = [random.Random(seed).sample(classes, len(classes)) for seed in range(400)]
    runs = [sum(1 for _ in groupby(order)) for order in orders]
    spread = len(classes) / math.sqrt(len(orders)) + 0.001
    assert abs(np.mean(runs) - expected_runs(counts)) <= 2 * spread


# --- a shard's ---


def test_a_record_s_picture_boxes_and_classes() -> None:
    boxes = floats(0, 0, 1, 1, 0.25, 0.5, 0.75, 1.0, 0.5, 0.5, 0.5, 1)  # the last has no area
    found = collected(YXYX, {"box": boxes, "label": ints(3, 3, 9)}, pictures=[PHOTO])
    assert without_samples(found) == Statistics(
        records=1,
        formats={"jpeg": 1},
        widths_px={18: 1},
        heights_px={17: 1},
        aspects={1: 1},
        image_bytes={33: 1},
        objects={3: 1},
        box_sides={-2: 1, 0: 1},
        class_records={3: 1, 9: 1},
        class_objects={3: 2, 9: 1},
        runs=1,
        expected_runs=1.0,
    )


@pytest.mark.parametrize(
    ("roles", "values", "sides", "odd"),
    [
        (YXYX, {"box": floats(0, 0, 0.5, 0.5)}, {-2: 1}, (0, 0)),
        (YXYX, {"box": floats(0, 0, math.nan, 0.5)}, {}, (1, 0)),
        (YXYX, {"box": floats(-math.inf, 0, math.inf, 0.5)}, {}, (1, 0)),
        (YXYX, {"box": floats(0.5, 0.5, 0, 0)}, {}, (1, 0)),  # both sides are negative
        (YXYX, {"box": floats(-3, -3, 3, 3)}, {0: 1}, (0, 0)),  # larger than the picture
        (YXYX, {"box": floats(0, 0, 0.5)}, {}, (0, 1)),
        (YXYX, {"box": ints(0, 0, 1, 1)}, {}, (0, 0)),  # of no such kind
        (PIXELS, {"box": floats(320, 240, 320, 240)}, {-2: 1}, (0, 0)),
        (PIXELS, {"box": floats(0, 0, -3, -3)}, {}, (1, 0)),
        (EDGES, edges([0], [0], [0.5], [0.5]), {-2: 1}, (0, 0)),
        (EDGES, edges([0], [0], [1], []), {}, (0, 1)),
        (EDGES, {"l": floats(0), "t": floats(0), "r": floats(1)}, {}, (0, 1)),
        (EDGES, edges(*np.array([[0, 0], [0, 0], [1, 1], [1, 1.0]])), {0: 2}, (0, 0)),
    ],
)
def test_boxes_of_every_form(
    roles: Roles, values: dict[str, Any], sides: dict[int, int], odd: tuple[int, int]
) -> None:
    collector = collector_of(roles, values, values, pictures=[PHOTO])
    assert collector.statistics().box_sides == {side: 2 * n for side, n in sides.items()}
    assert (collector.odd_boxes, collector.odd_records) == (2 * odd[0], 2 * odd[1])


def test_boxes_in_pixels_of_a_picture_that_nobody_knows_are_objects() -> None:
    found = collected(PIXELS, {"box": floats(1, 2, 3, 4, 5, 6, 7, 8)})
    assert (found.objects, found.box_sides) == ({2: 1}, {})


def test_shares_are_of_boxes_rounded_as_they_are_written() -> None:
    edge = 0.49999999  # in float32 it is a half
    found = collected(YXYX, {"box": floats(0, 0, edge, 1)})
    assert found.box_sides == {-1: 1}


def test_tensors_and_plain_values_are_pictures() -> None:
    roles = Roles(pixels=("a",), width="w", height="h")
    size = {"w": ints(8), "h": ints(4)}
    tensor = {"a": (Kind.BYTES, [encode_tensor(np.zeros((16, 2, 3), np.uint8))])}
    found = collected(roles, tensor, {**size, "a": (Kind.BYTES, [b"x" * 64])})
    assert found.formats == {"raw": 1, "tensor": 1}
    assert (found.widths_px, found.heights_px) == ({2: 1, 6: 1}, {4: 1, 8: 1})
    assert found.aspects == {-12: 1, 4: 1}


@pytest.mark.parametrize("value", [b"", b"x", encode_tensor(np.zeros((2, 0, 3), np.float32))])
def test_what_has_no_size_is_no_picture(value: bytes) -> None:
    roles = Roles(pixels=("a",), width="w", height="h")
    found = collected(roles, {"a": (Kind.BYTES, [value])}, {"w": ints(0), "h": ints(-5)})
    assert without_samples(found) == Statistics(records=2)


def test_classes_come_from_the_record_before_they_come_from_its_index() -> None:
    assert collected(CLASS, {"label": ints(7)}, labels=[3]).class_records == {7: 1}
    assert collected(CLASS, {}, labels=[3]).class_records == {}
    assert collected(Roles(), {}, labels=[np.int64(3)]).class_records == {3: 1}


@pytest.mark.parametrize(
    ("labels", "runs", "expected"),
    [
        ([[1], [1], [2], [1]], 3, 2.5),
        ([[1], [], [], [2]], 3, 3.5),
        ([[], [], []], 0, 0.0),
        ([[1, 2], [1]], 1, 1.0),  # the first leads
        ([], 0, 0.0),
    ],
)
def test_runs_of_the_leading_class(labels: list[list[int]], runs: int, expected: float) -> None:
    found = collected(CLASS, *({"label": ints(*of)} for of in labels))
    assert (found.runs, found.expected_runs) == (runs, expected)


def test_runs_do_not_hang_on_how_many_are_counted_at_once() -> None:
    labels = [random.Random(1).randrange(3) for _ in range(3 * 512 + 7)]
    found = collected(CLASS, *({"label": ints(label)} for label in labels))
    assert found.runs == sum(1 for _ in groupby(labels))
    assert found.class_records == dict(sorted(Counter(labels).items()))


def test_a_shard_without_records_has_nothing_to_tell() -> None:
    assert collected(YXYX) is NO_STATISTICS
    assert to_json(NO_STATISTICS) == b"{}\n"


def test_the_json_of_statistics_is_for_ever() -> None:
    found = collected(CLASS, {"label": ints(10)}, {"label": ints(9)})
    assert msgspec.to_builtins(found, str_keys=True) == {
        "records": 2,
        "class_records": {"9": 1, "10": 1},
        "runs": 2,
        "expected_runs": 2.0,
        "samples": [
            [6325738587520250587, -1, 1, 100, 100, "1"],
            [6800897329358961340, -1, 0, 0, 100, "0"],
            [6317272412790165655, 9, 1, 100, 100, "1"],
            [2268774566911547436, 10, 0, 0, 100, "0"],
        ],
    }
    assert from_json(to_json(found), Statistics) == found
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Statistics) == found


@pytest.mark.parametrize(
    "text",
    ['{"expected_runs": 1e300}', '{"widths_px": {"99999": 1}}', '{"records": -1}'],
)
def test_receipts_of_strangers_cannot_lead_beyond_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="Expected"):
        from_json(text.encode(), Statistics)


# --- what is drawn ---


def digest_of(label: int, key: str) -> int:
    import hashlib

    text = f"train\0{label}\0{key}".encode()
    digest = hashlib.blake2b(text, digest_size=8, person=b"tfrec-report").digest()
    return int.from_bytes(digest, "big") >> 1


@pytest.mark.parametrize("num_classes", [3, 2000])
def test_the_smallest_digests_are_drawn(num_classes: int) -> None:
    labels = [random.Random(seed).choices(range(num_classes), k=3) for seed in range(2000)]
    found = collected(CLASS, *({"label": ints(*of)} for of in labels)).samples
    wanted = sorted(digest_of(-1, str(number)) for number in range(2000))[:SAMPLES_PER_SPLIT]
    assert [sample.digest for sample in found if sample.label == -1] == wanted
    by_class: dict[int, list[int]] = {}
    for number, of in enumerate(labels):
        for label in set(of):
            by_class.setdefault(label, []).append(digest_of(label, str(number)))
    ranked = sorted(
        (rank, digest)
        for digests in by_class.values()
        for rank, digest in enumerate(sorted(digests)[:SAMPLES_PER_CLASS])
    )
    drawn = sorted(sample.digest for sample in found if sample.label >= 0)
    assert drawn == sorted(d for _, d in ranked[: MAX_SHARD_SAMPLES - SAMPLES_PER_SPLIT])
    assert len(found) <= MAX_SHARD_SAMPLES
    assert found == sorted(found, key=lambda sample: (sample.label, sample.digest))


def test_what_is_held_while_a_shard_grows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_CLASSES", 100)
    monkeypatch.setattr(statistics_collector, "MAX_CLASSES", 100)
    collector = StatisticsCollector("train", CLASS)
    for number in range(30_000):
        collector.add({"label": ints(number)}, (), (), (0, 1, str(number)))
        drawing = collector._drawing
        assert sum(map(len, drawing._drawn.values())) <= 1025
    assert len(drawing._begun) <= 4096
    found = collector.statistics()
    assert list(found.class_records) == [*range(100)]
    assert found.unlisted_class_records == 29_900
    assert (found.runs, found.expected_runs) == (30_000, 30_000.0)


def test_a_class_that_was_left_out_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_CLASSES", 2)
    monkeypatch.setattr(statistics_collector, "MAX_CLASSES", 2)
    labels = [*range(9, 0, -1), *range(1, 10)] * 300
    found = collected(CLASS, *({"label": ints(label)} for label in labels))
    assert found.class_records == {1: 600, 2: 600}
    assert found.unlisted_class_records == 600 * 7


# --- adding up ---

SMALL = st.dictionaries(st.integers(-9, 9), st.integers(1, 5), max_size=4)
SAMPLES = st.lists(
    st.builds(
        SampledRecord,
        digest=st.integers(0, 40),
        label=st.integers(-1, 6),
        number=st.integers(0, 3),
        offset=st.just(0),
        size=st.just(1),
        key=st.sampled_from("ab"),
    ),
    max_size=30,
)
PARTS = st.builds(
    Statistics,
    records=st.integers(0, 9),
    formats=st.dictionaries(st.sampled_from(["jpeg", "png"]), st.integers(1, 5)),
    widths_px=SMALL,
    class_records=st.dictionaries(st.integers(0, 9), st.integers(1, 5), max_size=5),
    class_objects=st.dictionaries(st.integers(0, 9), st.integers(1, 5), max_size=5),
    runs=st.integers(0, 9),
    expected_runs=st.integers(0, 10**12).map(lambda n: n / 1000),
    samples=SAMPLES,
)


@contextlib.contextmanager
def small_limits() -> Iterator[None]:
    """Set limits that a few values reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "MAX_CLASSES", 4)
        patch.setattr(statistics, "SAMPLES_PER_SPLIT", 3)
        patch.setattr(statistics, "SAMPLES_PER_CLASS", 2)
        patch.setattr(statistics, "MAX_SAMPLES", 9)
        yield


@given(st.lists(PARTS, max_size=6), st.randoms())
@settings(max_examples=300)
def test_parts_add_up_in_any_order_and_nesting(
    parts: list[Statistics], chance: random.Random
) -> None:
    with small_limits():
        whole = add_statistics(parts)
        left = list(parts)
        while len(left) > 1:
            chance.shuffle(left)
            count = chance.randint(1, len(left))
            left = [add_statistics(left[:count]), *left[count:]]
        assert add_statistics(left) == whole
        assert add_statistics([whole]) == whole
        assert add_statistics([whole, NO_STATISTICS]) == whole


@given(st.lists(PARTS, max_size=9), st.integers(1, 3))
def test_a_sum_is_of_all_parts_but_their_samples(parts: list[Statistics], at_once: int) -> None:
    with small_limits(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_ADDED_AT_ONCE", at_once)
        found = StatisticsSum()
        for part in parts:
            found.add(part)
        assert found.total() == msgspec.structs.replace(add_statistics(parts), samples=[])


@given(SAMPLES, SAMPLES, st.integers(3, 12))
@settings(max_examples=500)
def test_drawing_again_is_drawing_of_all(
    some: list[SampledRecord], others: list[SampledRecord], most: int
) -> None:
    with small_limits():
        apart = [*draw_samples(some, most), *draw_samples(others, most)]
        assert draw_samples(apart, most) == draw_samples([*some, *others], most)


@given(
    st.lists(st.lists(st.integers(0, 300), max_size=4), max_size=80),
    st.lists(st.integers(0, 80), max_size=4),
)
def test_counts_do_not_depend_on_the_sharding(labels: list[list[int]], cuts: list[int]) -> None:
    records = [{"label": ints(*of), "box": floats(*[0, 0, 0.5, 0.25] * len(of))} for of in labels]
    places = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    shards = []
    for start, end in pairwise(places):
        collector = StatisticsCollector("train", YXYX)
        for number in range(start, end):
            collector.add(records[number], [PHOTO], (), (number, 1, str(number)))
        shards.append(collector.statistics())
    whole = collected(YXYX, *records, pictures=[PHOTO])
    assert _counts(add_statistics(shards)) == _counts(whole)
    assert _drawn(add_statistics(shards)) >= _drawn(whole)


def _counts(found: Statistics) -> Statistics:
    """Return what does not hang on neighbours and places."""
    return msgspec.structs.replace(found, samples=[], runs=0, expected_runs=0.0)


def _drawn(found: Statistics) -> set[tuple[int, int, str]]:
    return {(sample.digest, sample.label, sample.key) for sample in found.samples}
