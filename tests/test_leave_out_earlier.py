"""The join of samples with the keys that earlier data sets hold."""

import random
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from schemas.faults import Rejected
from schemas.samples import Blob, Sample
from tests.small_runs import build_run, plan_run, write_set
from transforms.earlier import (
    EarlierIndex,
    EarlierSet,
    EarlierTally,
    LeaveOutEarlier,
    Since,
    count_earlier,
    find_earlier_sets,
    leave_out_earlier,
    parse_date,
    read_written,
)
from transforms.shard_index import IndexRow, index_to_parquet
from transforms.sources.read_samples import SplitSource


def sample(key: str, split: str = "train", annotations: tuple[int, ...] = (1, 2)) -> Sample:
    is_written = key.isascii() and key.isdecimal() and int(key) > 0
    name = f"a{int(key) - 1:03}.jpg" if is_written else f"{key}.jpg"  # as `write_set` has it
    return Sample(split, key, 0, (Blob(split, name),), b"fields", annotations)


def held(*keys: str) -> dict[str, str]:
    """Return what earlier data sets hold, by key: the files of the samples of these keys."""
    return {key: sample(key).blobs[0].name for key in keys}


def dropped(key: str, annotation_id: int, split: str = "train") -> Rejected:
    return Rejected(
        code="E-BOX-EMPTY",
        stage="read_coco",
        split=split,
        key=key,
        annotation_ids=(annotation_id,),
    )


def file_of(split: str, images: int) -> SplitSource:
    return SplitSource(split, "9:ff", images, 2 * images, 0, 0, 0, [])


@pytest.fixture
def earlier(tmp_path: Path) -> EarlierSet:
    """A data set of samples 1 to 5 of `train` and 1 to 7 of `val`, two shards each."""
    train, val = write_set(tmp_path / "train", 5), write_set(tmp_path / "val", 7)
    images, annotations = ({"train": t, "val": v} for t, v in zip(train, val, strict=True))
    (tmp_path / "out").mkdir()
    build_run(plan_run(images, annotations, tmp_path / "out"))
    (found,) = find_earlier_sets(
        Since([str(tmp_path / "out")], parse_date("2026-11-20")), "/nowhere", "detection"
    ).sets
    return found


# --- pure functions ---


def test_earlier_samples_are_left_out_with_their_annotations() -> None:
    samples = [sample("1"), sample("2", annotations=(5,)), sample("3", annotations=())]
    orphan = dropped("", 99)

    left = leave_out_earlier(
        samples, [dropped("1", 3), dropped("2", 6), orphan], held("1", "3", "7")
    )

    assert left == ([samples[1]], [dropped("2", 6), orphan], EarlierTally(2, 3))


def test_a_sample_that_was_written_and_cannot_be_read_now_is_left_out_and_counted() -> None:
    gone, new = (
        Rejected(
            code="E-IMG-EMPTY",
            stage="pin_blobs",
            split="train",
            key=key,
            annotation_ids=(1, 2),
            file_name="a.jpg",
        )
        for key in ("1", "8")
    )
    assert leave_out_earlier([], [gone, new], held("1")) == ([], [new], EarlierTally(1, 2))


def test_a_key_with_another_file_stops_the_run() -> None:
    """Ids that begin again each day would leave new images out, and all sums would hold."""
    with pytest.raises(RuntimeError) as raised:
        leave_out_earlier([sample("1")], [], {"1": "b.jpg"})
    assert str(raised.value) == (
        "E-SET-DUPLICATE sample 1 of train: its file is 'a000.jpg', and was 'b.jpg' in an earlier"
        " data set; give new images ids of their own, and old ones the names they had"
    )


def test_an_orphan_is_of_no_sample_even_if_one_has_an_empty_key() -> None:
    assert leave_out_earlier([], [dropped("", 99)], held("")) == (
        [],
        [dropped("", 99)],
        EarlierTally(),
    )


@given(st.sets(st.text(max_size=3)), st.sets(st.text(max_size=3)))
def test_every_sample_is_new_or_counted(keys: set[str], known: set[str]) -> None:
    new, _, tally = leave_out_earlier([sample(key) for key in sorted(keys)], [], held(*known))

    assert [s.key for s in new] == sorted(keys - known)
    assert tally == EarlierTally(len(keys & known), 2 * len(keys & known))


# --- indexes of data sets ---


def index(uri: str, split: str, number: int, records: int) -> EarlierIndex:
    (shard,) = Path(uri).glob(f"{split}-0000{number}-of-00002-*.tfrec")
    name = f"index/{shard.stem}.parquet"
    return EarlierIndex(uri, split, name, records, shard.stat().st_size)


def test_an_index_that_differs_from_the_manifest_stops_the_run(
    earlier: EarlierSet, tmp_path: Path
) -> None:
    """A key that is missing would be a sample that is written twice."""
    path = tmp_path / "out" / "index" / "train-00001-of-00002-2.parquet"
    path.write_bytes(index_to_parquet([IndexRow("4", 0, 20, [], [])]))

    with pytest.raises(RuntimeError) as raised:
        read_written(index(earlier.uri, "train", 1, 2))

    shard_bytes = index(earlier.uri, "train", 1, 2).bytes
    assert str(raised.value) == (
        f"E-SRC-CHANGED {path}: 1 records of 20 bytes, the manifest says 2 of {shard_bytes};"
        " restore index/ of that data set, then run again"
    )


def test_a_damaged_index_stops_the_run(earlier: EarlierSet, tmp_path: Path) -> None:
    path = tmp_path / "out" / "index" / "train-00001-of-00002-2.parquet"
    path.write_bytes(b"no index")

    with pytest.raises(RuntimeError, match=rf"^E-SRC-CHANGED {path}: index must be a Parquet"):
        read_written(index(earlier.uri, "train", 1, 2))


# --- the transform ---


def test_samples_are_joined_with_earlier_data_sets(
    earlier: EarlierSet, test_pipeline: Callable[[], beam.Pipeline]
) -> None:
    """Each split with its own keys, and one that there was none of; as the pure function has it."""
    known = {"train": range(1, 6), "val": range(1, 8), "other": ()}
    samples = {split: [sample(str(number), split) for number in range(3, 9)] for split in known}
    rejected = {split: [dropped("3", 31, split), dropped("8", 81, split)] for split in known}
    rejected["train"].append(dropped("", 99))
    left = {
        split: leave_out_earlier(samples[split], rejected[split], held(*map(str, known[split])))
        for split in known
    }
    shuffled = [s for split in known for s in samples[split]]
    random.Random(0).shuffle(shuffled)

    with test_pipeline() as pipeline:
        every = [reject for split in known for reject in rejected[split]]
        joined = (
            pipeline
            | "Samples" >> beam.Create(shuffled).with_output_types(Sample)
            | LeaveOutEarlier(
                (earlier,),
                tuple(known),
                pipeline | "Rejected" >> beam.Create(every).with_output_types(Rejected),
                pipeline | "Files" >> beam.Create([file_of(split, 6) for split in known]),
            )
        )
        new = [s for split in known for s in left[split][0]]
        still = [reject for split in known for reject in left[split][1]]
        counted = [count_earlier(file_of(split, 6), left[split][2]) for split in known]
        assert_that(joined.samples, equal_to(new), "samples")
        assert_that(joined.rejected, equal_to(still), "rejected")
        assert_that(joined.files, equal_to(counted), "files")

    assert [len(left[split][0]) for split in known] == [3, 1, 6]
    assert left["train"][2] == EarlierTally(3, 7)


def test_a_key_that_several_data_sets_hold_is_left_out_once(
    earlier: EarlierSet, tmp_path: Path, test_pipeline: Callable[[], beam.Pipeline]
) -> None:
    copy = EarlierSet(earlier.digest, str((tmp_path / "out").rename(tmp_path / "copy")))
    with test_pipeline() as pipeline:
        joined = (
            pipeline
            | "Samples" >> beam.Create([sample("1"), sample("6")]).with_output_types(Sample)
            | LeaveOutEarlier(
                (copy, copy),
                ("train",),
                pipeline | "Rejected" >> beam.Create([]).with_output_types(Rejected),
                pipeline | "Files" >> beam.Create([file_of("train", 2)]),
            )
        )
        assert_that(joined.samples, equal_to([sample("6")]), "samples")
        counted = count_earlier(file_of("train", 2), EarlierTally(1, 2))
        assert_that(joined.files, equal_to([counted]), "files")
