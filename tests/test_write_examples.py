"""`WriteExamples`, `ReadExamples` and compressed files: records that are staged, then copied."""

import gzip
import logging
import random
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

import beam_tfrec
from beam_tfrec.pipelines import records
from beam_tfrec.pipelines.examples import ReadExamples, WriteExamples
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.faults import RejectBudget
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Order, Sample
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.schemas.tfrecord import frame_record
from beam_tfrec.transforms.plan_shards import members_digest
from beam_tfrec.transforms.records.read_records import StageExamples
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, open_storage, read_data_set
from beam_tfrec.transforms.storage.staging import Staging
from tests.children import KILLED, die_at, exit_code_of
from tests.coco_command import check_committed, committed_by, digests, rejected_of, run_pipeline
from tests.conftest import thorough
from tests.gcs_stand_in import GcsStandIn
from tests.invariants import files_of
from tests.servers import started
from tests.test_engines import WORKER, service

STEPS_OF_A_RUN = 139  # that `die_at` counts
KILLS = [1 + number * (STEPS_OF_A_RUN - 1) // 59 for number in range(60)]
BAD = ("bad", b"\xff not an Example")
LABEL_7 = {"key": (Kind.BYTES, [b"7"]), "image/class/label": (Kind.INT64, [7])}
DATA = ("*.tfrec", "index/*", "manifest.json", "rejected.jsonl", "_plan.json", "_receipts/*")
Pairs = Sequence[tuple[str, Any]]


def pair(number: int) -> tuple[str, bytes]:
    """Return a key and an Example that holds the key, too."""
    key = f"k{number:03}"
    values = {
        "key": (Kind.BYTES, [key.encode()]),
        "image/class/label": (Kind.INT64, [number % 2]),
        "more": (Kind.BYTES, [b"x" * (number * 37 % 101)]),
    }
    return key, encode_example(values | ({"odd": (Kind.FLOAT, [0.5])} if number % 2 else {}))


PAIRS = [pair(number) for number in range(40)]


def write(output: object, pairs: Pairs = PAIRS, *flags: str, **given: Any) -> None:
    """Write pairs as a data set of three shards, in this process unless flags name a runner."""
    runner = None if "--runner" in flags else "FnApiRunner"
    with beam.Pipeline(runner, PipelineOptions([*flags])) as root:
        _ = root | beam.Create(pairs) | WriteExamples(str(output), num_shards=3, **given)


def write_until(nth: int, output: str) -> None:
    """Begin to write `PAIRS`, and end this process at a call that `die_at` counts."""
    die_at(nth)
    write(output)


def check_read(output: object, split: str, pairs: Pairs) -> None:
    """Read a split, and check that these pairs are all in it."""
    with beam.Pipeline("FnApiRunner") as root:
        assert_that(root | ReadExamples(str(output), split), equal_to(pairs))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("written") / "out"
    write(out)
    check_committed(out)
    return out


def framed(pairs: Pairs) -> bytes:
    return b"".join(part for _, data in pairs for part in frame_record([data]))


def test_the_shards_are_those_of_copied_files(written: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.tfrecord").write_bytes(framed(PAIRS))
    flags = ("--records", tmp_path / "files", "--key_feature", "key", "--num_shards", 3)
    committed_by(records.run, tmp_path / "out", *flags, "--no_report")
    assert digests(written, "*.tfrec") == digests(tmp_path / "out", "*.tfrec") != {}
    assert not (written / "_staged").exists()
    opened = beam_tfrec.open(str(written), "train")
    assert {record["key"]: record["odd"] for record in opened}.keys() == {
        key.encode() for key, _ in PAIRS
    }


def as_messages(pairs: Pairs) -> list[tuple[str, Any]]:
    import tensorflow as tf

    return [(key, tf.train.Example.FromString(data)) for key, data in pairs]


@pytest.mark.parametrize("given", [list, thorough(as_messages)])
def test_order_bundles_and_messages_change_nothing(
    given: Callable[[Pairs], Pairs], written: Path, tmp_path: Path
) -> None:
    pairs = random.Random(1).sample(PAIRS, len(PAIRS))
    write(tmp_path / "out", given(pairs), "--direct_num_workers", "3")
    assert digests(tmp_path / "out") == digests(written)


@pytest.mark.slow
def test_a_job_service_writes_the_same(written: Path, tmp_path: Path) -> None:
    """Workers of a process of their own get all that they hold as bytes."""
    with started(service) as (port, _):
        engine = ("--runner", "PortableRunner", "--job_endpoint", f"localhost:{port}")
        worker = ("--environment_type", "beam:env:harness_subprocess_python:v1")
        write(tmp_path / "out", PAIRS, *engine, *worker, "--environment_config", WORKER)
    assert digests(tmp_path / "out") == digests(written)


def test_labels_splits_and_rejects(tmp_path: Path) -> None:
    divided = Splitting("hash", {"train": Fraction(3), "val": Fraction(1)}, group_by="key")
    write(
        tmp_path / "out",
        [*PAIRS, BAD, ("7", encode_example(LABEL_7))],
        splitting=divided,
        labels={0: "cat", 1: "dog"},
        budget=RejectBudget(2),
        temp_location=str(tmp_path / "temp"),
    )
    check_committed(tmp_path / "out")
    fields = "code", "key", "stage", "file_name"  # the staged file has no name to tell
    lost = {tuple(line[field] for field in fields) for line in rejected_of(tmp_path / "out")}
    bad = ("E-REC-EXAMPLE", "bad", "stage_records", "")
    assert lost == {bad, ("E-SRC-LABEL", "7", "write_shards", "")}
    opened = {split: beam_tfrec.open(str(tmp_path / "out"), split) for split in ("train", "val")}
    assert opened["val"].labels == (Label(0, "cat"), Label(1, "dog"))
    for split, found in opened.items():
        of_split = [pair for pair in PAIRS if divided.draw(pair[0]) == split]
        assert len(found) == len(of_split) > 0
        check_read(tmp_path / "out", split, of_split)
    assert [*(tmp_path / "temp").iterdir()] == []


def test_a_fault_ends_a_run_and_the_next_one_clears_up(written: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Exception, match=r"E-SET-DUPLICATE split train: .* the key 'k003';"):
        write(tmp_path / "twice", [*PAIRS, PAIRS[3]])
    with pytest.raises(
        Exception, match=r"E-BUDGET .*: 1 of 41 samples rejected, at most 0 allowed .*; "
    ) as e:
        write(out, [*PAIRS, BAD])
    assert "correct them, or accept with budget=RejectBudget(1)" in str(e.value)
    assert {name.split("/")[0] for name in files_of(out)} == {"_staged"}
    write(out)
    assert digests(out) == digests(written)
    assert not (out / "_staged").exists()


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([48, 89], marks=pytest.mark.thorough, id="two"),
        *(pytest.param(KILLS[n::6], marks=pytest.mark.chaos, id=f"ten-{n}") for n in range(6)),
    ],
)
def test_killed_runs_resume(points: list[int], written: Path, tmp_path: Path) -> None:
    for nth in points:
        out = tmp_path / f"{nth}"
        assert exit_code_of(write_until, nth, str(out), timeout_s=240) == KILLED
        kept = {path: path.stat().st_mtime_ns for path in out.glob("*.tfrec")}
        assert nth != 89 or kept
        write(out)
        assert digests(out) == digests(written), nth
        assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_wrong_options_and_windows_are_refused(test_pipeline: Callable[[], beam.Pipeline]) -> None:
    with pytest.raises(ValueError, match=r"^num_shards must come without records_per_shard"):
        WriteExamples("out", num_shards=2, records_per_shard=5)
    with pytest.raises(ValueError, match=r"^names must be a ShardNames, got 'plain': give "):
        WriteExamples("out", names="plain")
    with pytest.raises(ValueError, match=r"^splitting must be a Splitting, got 'hash': give "):
        WriteExamples("out", splitting="hash")
    with pytest.raises(ValueError, match=r"^labels must be names by numbers from 0 to 2147"):
        WriteExamples("out", labels={-1: "cat"})
    with pytest.raises(ValueError, match=r"^labels must be names by numbers, got \['cat'\]: give"):
        WriteExamples("out", labels=["cat"])
    pairs = test_pipeline() | beam.Create(PAIRS) | beam.WindowInto(beam.window.FixedWindows(1))
    with pytest.raises(ValueError, match=r"^examples must be bounded and in the global w"):
        pairs | WriteExamples("out")


def stage(pairs: Pairs, staging: Staging, *, bundles: int = 1, lost: int = 0) -> list[Sample]:
    """Stage pairs in bundles. Before each, an attempt fails after some of its pairs."""
    samples: list[Sample] = []
    step = StageExamples("train", Splitting(), staging)
    for first in range(bundles):
        for attempt in (pairs[:lost], pairs[first::bundles]):
            step.start_bundle()
            items = [item for example in attempt for item in step.process(example)]
        items += [found.value for found in step.finish_bundle()]
        samples += [item for item in items if isinstance(item, Sample)]
    return samples


def test_a_repeated_bundle_doubles_nothing(tmp_path: Path) -> None:
    """Samples of all attempts are the same to the plan; each attempt has files of its own."""
    wholes = Staging(str(tmp_path / "staged"), "1", DEFAULT_ACCESS)
    halves = Staging(str(tmp_path / "staged"), "1", DEFAULT_ACCESS, file_bytes=1000)
    others = stage(PAIRS, wholes, lost=20), stage(PAIRS[::-1], halves, bundles=3)
    attempts = [stage(PAIRS, wholes), *others]
    files = [{sample.blobs[0].name for sample in samples} for samples in attempts]
    assert [len(names) > 1 for names in files] == [False, False, True]
    assert len(set.union(*files)) == sum(map(len, files)) == len([*tmp_path.glob("*/1/*")])
    assert len({members_digest(samples, Order.SHUFFLED) for samples in attempts}) == 1
    for samples in attempts:
        assert sorted(sample.key for sample in samples) == [key for key, _ in PAIRS]
        for sample in samples:
            file = tmp_path / "staged" / "1" / sample.blobs[0].name
            start, size = sample.blobs[0].offset, sample.blobs[0].length
            assert file.read_bytes()[start : start + size] == framed(
                [(sample.key, dict(PAIRS)[sample.key])]
            )


@pytest.mark.parametrize(
    ("pair", "error"),
    [
        ((3, b""), "a key must be text, got 3: "),
        (("a", {}), "an Example must be a protobuf message or its bytes, got dict for key 'a': "),
    ],
)
def test_pairs_of_other_types_are_refused(pair: Any, error: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{error}"):
        stage([pair], Staging(str(tmp_path), "1", DEFAULT_ACCESS))


def test_a_bucket_is_written_and_read(
    stand_in: GcsStandIn, caplog: pytest.LogCaptureFixture, written: Path
) -> None:
    caplog.set_level(logging.WARNING, "beam_tfrec")
    stand_in.put("bucket", f"out/_staged/{0:032x}/x.tfrecord", b"left by a dead run")
    stand_in.put("bucket", "out/_staged/mine/x.tfrecord", b"of the user")
    write("gs://bucket/out")
    names = {name for name in files_of(written) if not name.startswith("_sources/")}
    found = {name.removeprefix("out/") for name in stand_in.objects("bucket")}
    found.remove("_staged/mine/x.tfrecord")
    assert {name for name in found if not name.startswith("_sources/")} == names
    check_read("gs://bucket/out", "train", PAIRS)
    stand_in.allow("storage.objects.get", "storage.objects.list", "storage.objects.create")
    write("gs://bucket/out")  # its records stay there
    assert caplog.text.count(" is left, delete it: E-IO-AUTH ") == 1
    assert len(stand_in.objects("bucket")) == len(found) + 2


def test_a_damaged_record_is_named(written: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out)
    shard = max(out.glob("*.tfrec"))
    data = bytearray(shard.read_bytes())
    rows = [line.split() for line in min(out.glob("index/*00002*.idx")).read_text().splitlines()]
    data[int(rows[1][0]) + 20] ^= 1
    shard.write_bytes(data)
    with pytest.raises(
        Exception, match=rf"E-VER-CRC {shard}: record 1 \(key k\d+\) at byte {rows[1][0]}: "
    ):
        check_read(out, "train", PAIRS)
    with pytest.raises(Exception, match=r"E-ARG .*: is a data set without a split val; give split"):
        check_read(out, "val", [])
    with pytest.raises(Exception, match=r"E-ARG .*: is not a finished .*, or give another uri"):
        check_read(out / "index", "train", [])


@pytest.mark.parametrize("part_bytes", [100, 1000, 1 << 20])
def test_parts_of_a_shard_are_its_records(part_bytes: int, written: Path) -> None:
    storage = open_storage(str(written))
    shards = read_data_set.list_shards(storage, read_data_set.read_finished(storage, "uri")[0], "")
    parts = [part for shard in shards for part in read_data_set.parts_of(shard, part_bytes)]
    assert len(parts) == sum(-(-shard.entry.bytes // part_bytes) for shard in shards)
    assert (
        sorted(
            pair
            for part in parts
            for pair in read_data_set.read_part(part, storage.root, DEFAULT_ACCESS, "")
        )
        == PAIRS
    )


@pytest.mark.parametrize("pack", [gzip.compress, thorough(zlib.compress)])
def test_compressed_files_are_read_as_others(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    for name, change in (("plain", bytes), ("packed", pack)):
        (tmp_path / name).mkdir()
        for number in (0, 1):
            data = framed(PAIRS[number::2])
            (tmp_path / name / f"{number}.tfrecord").write_bytes(change(data) if number else data)
    plan = run_pipeline(
        records.run, "--records", tmp_path / "packed", "--output", tmp_path / "x", "--plan"
    )
    assert (plan.code, (tmp_path / "x").exists()) == (0, False)
    for name in ("plain", "packed"):
        flags = ("--records", tmp_path / name, "--num_shards", 2, "--no_report")
        committed_by(records.run, tmp_path / f"{name}-out", *flags)
    assert digests(tmp_path / "plain-out", *DATA) == digests(tmp_path / "packed-out", *DATA) != {}
    assert not (tmp_path / "packed-out" / "_staged").exists()
