import dataclasses
import errno
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from apache_beam.metrics import MetricsFilter
from apache_beam.testing.util import assert_that, equal_to

from schemas.faults import Rejected
from schemas.features import Kind
from schemas.fields import EncodedImage
from schemas.layouts import Built, Labels, Unfit
from schemas.layouts.detection import DetectionLayout
from schemas.manifest import JobPlan, plan_digest
from schemas.samples import Sample
from schemas.shards import ShardInfo, ShardPlan, file_sum
from tests import small_runs
from tests.children import KILLED, exit_code_of
from tests.conftest import jpeg_bytes
from tests.invariants import check_output, files_of
from tests.small_images import chunk, idat, ihdr, jpeg, png
from tests.small_runs import (
    SmallRun,
    build_and_die,
    build_run,
    build_shards,
    claim,
    plan_run,
    touch,
    write_all,
    write_set,
)
from transforms.gate import PROGRESS, GateLimits
from transforms.shard_index import index_from_parquet, index_to_parquet
from transforms.write_shards import WriteShards

STEM = "train-00000-of-00001"
RECEIPT, PARQUET, IDX = f"_receipts/{STEM}.json", f"index/{STEM}-4.parquet", f"index/{STEM}-4.idx"
DATA = f"{STEM}-4.tfrec"


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path]:
    """Four images `a000.jpg` … `a003.jpg` with two objects each."""
    return write_set(tmp_path / "data", 4)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def plan(data: tuple[Path, Path], out: Path, **options: Any) -> SmallRun:
    """Return the run that makes one shard of all images."""
    return plan_run(*data, out, num_shards=1, **options)


def build(run: SmallRun) -> ShardInfo:
    (info,) = build_shards(run)
    return info


def contents(out: Path) -> dict[str, str]:
    """Return what is there beside the plan that claims the output."""
    return {n: sha for n, sha in small_runs.contents(out).items() if n != "_plan.json"}


def keys_in_order(run: SmallRun) -> list[str]:
    return [sample.key for sample in run.shards[0].samples]


def read_examples(path: Path) -> list[dict[str, Any]]:
    """Return what TensorFlow reads from a shard: per Example the values of every feature."""
    import tensorflow as tf

    examples = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        examples.append(
            {key: list(getattr(f, f.WhichOneof("kind")).value) for key, f in features.items()}
        )
    return examples


# --- what is written ---


def test_tensorflow_reads_the_sources_in_the_planned_order(
    data: tuple[Path, Path], out: Path
) -> None:
    images, annotations = data
    run = plan(data, out)

    info = build(run)

    names = {str(i["id"]): i["file_name"] for i in json.loads(annotations.read_text())["images"]}
    examples = read_examples(out / info.file)
    assert [e["image/source_id"] for e in examples] == [[k.encode()] for k in keys_in_order(run)]
    for key, example in zip(keys_in_order(run), examples, strict=True):
        source = (images / names[key]).read_bytes()
        assert example["image/encoded"] == [source]
        assert example["image/filename"] == [names[key].encode()]
        assert example["image/key/sha256"] == [hashlib.sha256(source).hexdigest().encode()]
        assert (example["image/width"], example["image/height"]) == ([64], [48])
        assert example["image/object/class/label"] == [1, 2]
        assert example["image/object/class/text"] == [b"person", b"crowd of people"]
        assert example["image/object/bbox/xmin"] == [1.5 / 64, 2.5 / 64]


# Six zeros in a stored block of zlib, so that no compressor has a say.
STORED_PIXELS = chunk(b"IDAT", bytes.fromhex("7801 01 0600f9ff 000000000000 00060001"))
GOLDEN_COCO = {
    "images": [
        {"id": 1, "file_name": "a.jpg", "width": 8, "height": 8},
        {"id": 2, "file_name": "b/c.jpg", "width": 4, "height": 4},  # a PNG half the size
        {"id": 3, "file_name": "d.jpg", "width": 8, "height": 8},
    ],
    "annotations": [
        {"id": 9, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4.5], "iscrowd": 1},
        {"id": 5, "image_id": 1, "category_id": 1, "bbox": [-1, 0, 3, 3], "area": 7.25},
        {"id": 7, "image_id": 2, "category_id": 1, "bbox": [8, 8, 1, 1]},  # outside
    ],
    "categories": [{"id": 1, "name": "person"}, {"id": 3, "name": "caf\u00e9"}],
}


def test_the_bytes_of_a_shard_are_for_ever(tmp_path: Path, out: Path) -> None:
    # Of images made by hand, so that no codec has a say. A change here is a breaking change: it
    # raises the format version.
    images, annotations = tmp_path / "images", tmp_path / "instances.json"
    (images / "b").mkdir(parents=True)
    for name, image in (
        ("a.jpg", jpeg()),
        ("b/c.jpg", png(ihdr(), STORED_PIXELS)),
        ("d.jpg", jpeg()),
    ):
        (images / name).write_bytes(image)
    annotations.write_text(json.dumps(GOLDEN_COCO))
    run = plan((images, annotations), out)

    info = build(run)

    assert keys_in_order(run) == ["1", "2", "3"]
    assert info == ShardInfo(
        plan=plan_digest(run.plan),
        split="train",
        index=0,
        num_shards=1,
        file=f"{STEM}-3.tfrec",
        planned=3,
        records=3,
        bytes=1923,
        crc32c="0214f5a8",
        sha256="be15cc7d972d484dd1121e5ecfb82e62e02775c93bf7b4ff25f01d080611b5ff",
        annotations_listed=3,
        annotations_written=2,
        repairs={"box_clipped": 1, "boxes_rescaled": 1},
        traits={"gray": 3},
        rejected=[
            Rejected(
                code="E-BOX-OUTSIDE",
                stage="write_shards",
                split="train",
                key="2",
                annotation_ids=(7,),
                file_name="b/c.jpg",
                detail="x 8.0 to 9.0, y 8.0 to 9.0 in 4 x 4",
                shard=STEM,
            )
        ],
        receipt=file_sum((out / RECEIPT).read_bytes()),
    )


# --- rejects ---


@dataclasses.dataclass(frozen=True)
class OddLayout(DetectionLayout):
    """A layout of the user's that does something odd with the image of key 2."""

    odd: Callable[[], Any] = dict

    def build(
        self, sample: Sample, images: Sequence[EncodedImage], labels: Labels
    ) -> Built | Unfit:
        if sample.key == "2":
            return self.odd()
        return super().build(sample, images, labels)


def raising(error: BaseException) -> Callable[[], Any]:
    def odd() -> Any:
        raise error

    return odd


def too_large() -> Built:
    """Return values beyond protobuf's limit, of one megabyte that stands in them many times."""
    piece = bytes(2**20)
    return Built({"huge": (Kind.BYTES, [piece] * 2048)}, [], [], [])


def of_wrong_kind() -> Built:
    return Built({"key": (Kind.INT64, [2**63])}, [], [], [])


def check_that_key_2_is_rejected(run: SmallRun, out: Path, code: str, detail: str) -> None:
    info = build(run)

    assert info.rejected == [
        Rejected(
            code=code,
            stage="write_shards",
            split="train",
            key="2",
            annotation_ids=(101, 102),
            file_name="a001.jpg",
            detail=detail,
            shard=STEM,
        )
    ]
    assert (info.planned, info.records, info.file) == (4, 3, f"{STEM}-3.tfrec")
    assert (info.annotations_listed, info.annotations_written) == (8, 6)
    kept = [key for key in keys_in_order(run) if key != "2"]
    examples = read_examples(out / info.file)
    assert [example["image/source_id"] for example in examples] == [[k.encode()] for k in kept]
    rows = index_from_parquet((out / f"index/{STEM}-3.parquet").read_bytes())
    assert [row.key for row in rows] == kept


CUT = jpeg_bytes(64, 48)[:-10]


@pytest.mark.parametrize(
    ("image", "code", "detail"),
    [
        (CUT, "E-IMG-TRUNCATED", f"no end marker in {len(CUT)} bytes"),
        (b"<html>Not Found</html>", "E-IMG-TYPE", "HTML"),
        (
            png(ihdr(65_535, 65_535), idat()),
            "E-IMG-PIXELS",
            "65535 x 65535 = 4294836225 pixels, limit 178956970",
        ),
        (jpeg_bytes(64, 40), "E-IMG-SIZE", "64 x 40 in the file, 64 x 48 annotated"),
    ],
)
def test_an_image_that_is_unfit_is_rejected(
    data: tuple[Path, Path], out: Path, image: bytes, code: str, detail: str
) -> None:
    (data[0] / "a001.jpg").write_bytes(image)

    check_that_key_2_is_rejected(plan(data, out), out, code, detail)


@pytest.mark.parametrize(
    ("odd", "code", "detail"),
    [
        (
            too_large,
            "E-EX-TOO-LARGE",
            "2147491870 bytes, the limit is 2147483647",
        ),
        (
            of_wrong_kind,
            "E-EX-FAILED",
            "OverflowError: int64 features take -2^63 to 2^63-1, got 9223372036854775808",
        ),
        (raising(ValueError("no box")), "E-EX-FAILED", "ValueError: no box"),
        (
            raising(OSError("no errno: not of the machine")),
            "E-EX-FAILED",
            "OSError: no errno: not of the machine",
        ),
        (raising(ValueError("x" * 999 + "\nlines")), "E-EX-FAILED", "ValueError: " + "x" * 188),
        # What differs from run to run, or from terminal to terminal, stays out of the receipt.
        (
            raising(ValueError("<object at 0x7fa3b2c4d5e6> \udcff\x1b[0m")),
            "E-EX-FAILED",
            "ValueError: <object at 0x> \\udcff\\x1b[0m",
        ),
        (lambda: Unfit("E-IMG-SIZE", "too small for me"), "E-IMG-SIZE", "too small for me"),
        (lambda: Unfit("E-BOX-EMPTY", "none"), "E-EX-FAILED", "E-BOX-EMPTY: none"),
    ],
)
def test_an_example_that_cannot_be_built_is_rejected(
    data: tuple[Path, Path], out: Path, odd: Callable[[], Any], code: str, detail: str
) -> None:
    run = plan(data, out, layout=OddLayout(odd=odd))

    check_that_key_2_is_rejected(run, out, code, detail)


def test_a_shard_of_rejects_alone_is_an_empty_file(data: tuple[Path, Path], out: Path) -> None:
    for image in data[0].iterdir():
        image.write_bytes(b"<html>")

    info = build(plan(data, out))

    assert (info.planned, info.records, len(info.rejected)) == (4, 0, 4)
    assert info.file == f"{STEM}-0.tfrec"
    assert (out / info.file).read_bytes() == b""
    assert read_examples(out / info.file) == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("full"),
        RecursionError("deep"),
        OSError(errno.ENOSPC, "No space left on device"),
        KeyboardInterrupt("now"),
    ],
)
def test_trouble_of_the_machine_is_never_a_reject(
    data: tuple[Path, Path], out: Path, error: BaseException
) -> None:
    run = plan(data, out, layout=OddLayout(odd=raising(error)))

    with pytest.raises(type(error)) as raised:
        build(run)

    assert raised.value is error
    assert contents(out) == {}


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


@pytest.mark.parametrize("change", [Path.unlink, grow, touch])
def test_a_source_that_changes_before_it_is_read_fails_the_shard(
    data: tuple[Path, Path], out: Path, change: Callable[[Path], None]
) -> None:
    run = plan(data, out)
    change(data[0] / "a002.jpg")

    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED .*/a002\.jpg: .*; run again when"):
        build(run)

    assert contents(out) == {}


@dataclasses.dataclass(frozen=True)
class CodedLayout(DetectionLayout):
    """A layout whose bytes hang on a codec, of another version where shards are written."""

    def options(self) -> dict[str, str]:
        here = threading.current_thread() is threading.main_thread()
        return super().options() | {"codec": "coder 1" if here else "coder 2"}


def test_a_worker_with_another_codec_than_planned_writes_nothing(
    data: tuple[Path, Path], out: Path
) -> None:
    run = plan_run(*data, out, layout=CodedLayout())

    with ThreadPoolExecutor(1) as worker, pytest.raises(RuntimeError) as raised:
        worker.submit(build, run).result()

    assert str(raised.value) == (
        f"E-ARG {out}: codec is 'coder 1' in the plan, 'coder 2' on this worker;"
        " give workers the packages of the machine that plans, best in an image"
    )
    assert contents(out) == {}


# --- resuming ---


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns what was logged since it was last asked: whether shards were kept or written."""
    caplog.set_level(logging.INFO, logger="transforms.build_shard")

    def since() -> list[str]:
        words = [record.getMessage().split()[0] for record in caplog.records]
        caplog.clear()
        return words

    return since


def test_a_finished_shard_is_kept_without_reading_an_image(
    data: tuple[Path, Path], out: Path, log: Callable[[], list[str]]
) -> None:
    (data[0] / "a001.jpg").write_bytes(b"<html>")
    run = plan(data, out)
    first = build(run)
    before = contents(out)
    for image in data[0].iterdir():
        image.unlink()

    assert build(run) == first
    assert [reject.code for reject in first.rejected] == ["E-IMG-TYPE"]
    assert log() == ["wrote", "kept"]
    assert contents(out) == before


@pytest.mark.parametrize(
    "gone", [[DATA], [PARQUET], [IDX], [RECEIPT], [DATA, PARQUET, IDX], [PARQUET, IDX, RECEIPT]]
)
def test_what_is_missing_is_built_again_and_comes_out_equal(
    data: tuple[Path, Path], out: Path, log: Callable[[], list[str]], gone: list[str]
) -> None:
    run = plan(data, out)
    first = build(run)
    before = contents(out)
    for name in gone:
        (out / name).unlink()

    assert build(run) == first
    assert log() == ["wrote", "wrote"]
    assert contents(out) == before


def test_a_touched_source_is_hashed_and_accepted(
    data: tuple[Path, Path], out: Path, log: Callable[[], list[str]]
) -> None:
    first = build(plan(data, out))
    before = contents(out)
    touch(data[0] / "a001.jpg")
    run = plan(data, out)
    (data[0] / "a002.jpg").unlink()  # its pin is the index's, so nobody looks

    assert build(run) == first
    assert log() == ["wrote", "kept"]
    assert contents(out) == before


def test_a_source_with_other_bytes_stops_the_resumed_run(
    data: tuple[Path, Path], out: Path
) -> None:
    build(plan(data, out))
    before = contents(out)
    image = data[0] / "a001.jpg"
    changed = bytearray(image.read_bytes())
    changed[-3] ^= 1
    image.write_bytes(bytes(changed))
    touch(image)

    with pytest.raises(RuntimeError) as raised:
        build(plan(data, out))

    assert str(raised.value) == (
        f"E-SRC-CHANGED {image}: other bytes than when {STEM} was written;"
        " restore it, or give another --output, or --overwrite"
    )
    assert contents(out) == before


def spoil(path: Path, edit: Callable[[bytes], bytes]) -> None:
    path.write_bytes(edit(path.read_bytes()))


def edit_receipt(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), **changes}).encode()


def rekeyed(data: bytes, key: str) -> bytes:
    first, *rest = index_from_parquet(data)
    return index_to_parquet([msgspec.structs.replace(first, key=key), *rest])


def drop_last_row(data: bytes) -> bytes:
    return index_to_parquet(index_from_parquet(data)[:-1])


@pytest.mark.parametrize(
    ("name", "edit", "what"),
    [
        (RECEIPT, edit_receipt(plan="00ff"), r"_receipts/\S*: belongs to plan 00ff, this run's is"),
        (RECEIPT, lambda _: b"{}", r"_receipts/\S*: is no receipt \("),
        (RECEIPT, lambda _: b'{"a": ' + b"[" * 10_000, r"_receipts/\S*: is no receipt \("),
        (DATA, lambda data: data[:-1], r"4\.tfrec: has \d+ bytes, its receipt says \d+"),
        (PARQUET, lambda _: b"garbage", r"parquet: index must be a Parquet file of records, got"),
        (RECEIPT, edit_receipt(index=3), r"_receipts/\S*: is the receipt of train-00003-of-00001"),
        (PARQUET, lambda data: rekeyed(data, "77"), r"parquet: describes other records"),
        (PARQUET, drop_last_row, r"parquet: describes other records"),
    ],
)
def test_what_is_there_and_disagrees_is_a_conflict(
    data: tuple[Path, Path], out: Path, name: str, edit: Callable[[bytes], bytes], what: str
) -> None:
    run = plan(data, out)
    build(run)
    spoil(out / name, edit)
    before = contents(out)

    with pytest.raises(RuntimeError, match=rf"^E-OUT-CONFLICT {out}/.*{what}.*; give another --o"):
        build(run)

    assert contents(out) == before


@pytest.mark.parametrize(
    ("name", "edit", "what"),
    [
        (RECEIPT, edit_receipt(sha256="00"), "has other content than this run's"),
        (PARQUET, lambda _: b"garbage", "index must be a Parquet file of records, got"),
        (PARQUET, drop_last_row, "describes other records"),
        (IDX, lambda data: data + b"9 9\n", "has other content than this run's"),
    ],
)
def test_a_claim_that_comes_out_otherwise_is_a_conflict(
    data: tuple[Path, Path], out: Path, name: str, edit: Callable[[bytes], bytes], what: str
) -> None:
    run = plan(data, out)
    build(run)
    spoil(out / name, edit)
    (out / DATA).unlink()
    before = contents(out)

    with pytest.raises(RuntimeError, match=rf"^E-OUT-CONFLICT {out}/{name}: {what}.*; give anoth"):
        build(run)

    assert contents(out) == before


def test_a_run_that_was_overwritten_claims_no_shard(data: tuple[Path, Path], out: Path) -> None:
    run = plan(data, out)

    with pytest.raises(RuntimeError, match=rf"^E-OUT-PLAN {out}: _plan\.json is gone since"):
        write_all(run)

    assert contents(out) == {}


def test_a_file_of_equal_size_but_other_bytes_is_a_conflict(
    data: tuple[Path, Path], out: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    build(plan(data, elsewhere))
    foreign = bytearray((elsewhere / DATA).read_bytes())
    foreign[-1] ^= 1
    (out / DATA).write_bytes(foreign)

    for _ in range(2):  # a rerun does not take it for what the first run claimed
        with pytest.raises(RuntimeError, match=rf"^E-OUT-CONFLICT {out}/{DATA}: has CRC-32C"):
            build(plan(data, out))

    assert list(contents(out)) == [DATA]
    assert (out / DATA).read_bytes() == foreign


# --- twins and deaths ---


def test_writers_of_one_shard_at_once_make_one_set_of_files(
    data: tuple[Path, Path], tmp_path: Path
) -> None:
    writers = 3
    (tmp_path / "alone").mkdir()
    alone = build(plan(data, tmp_path / "alone"))
    for attempt in range(10):
        out = tmp_path / f"out{attempt}"
        out.mkdir()
        run = plan(data, out)
        together = threading.Barrier(writers)
        infos: list[ShardInfo] = []

        def write(run: SmallRun = run, together: threading.Barrier = together) -> None:
            together.wait()
            infos.append(build(run))  # noqa: B023

        threads = [threading.Thread(target=write) for _ in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert infos == [alone] * writers
        assert contents(out) == contents(tmp_path / "alone")


CALLS_OF_A_RUN = 76
"""Calls of write, fsync and link in a run of two shards with three images each.

A small file takes 4 (write, sync, link, sync of the folder), a shard 1 + 3 and 3 small files, the
probe and the plan 1 small file each, the commit 9.
"""


@pytest.mark.parametrize("how", ["whole", "torn", "named"])
@pytest.mark.parametrize(
    ("num_shards", "calls"),
    [(2, CALLS_OF_A_RUN), pytest.param(4, CALLS_OF_A_RUN + 32, marks=pytest.mark.chaos)],
)
def test_a_run_killed_at_any_call_resumes_to_the_same_files(
    tmp_path: Path, num_shards: int, calls: int, how: str
) -> None:
    images, annotations = write_set(tmp_path / "data", 3 * num_shards)
    build_run(plan_run(images, annotations, tmp_path / "undisturbed", num_shards))
    undisturbed = files_of(tmp_path / "undisturbed")

    exit_codes = []
    for nth in range(1, calls + 2):
        out = tmp_path / f"killed at {nth}"
        planned = images, annotations, out, num_shards
        exit_codes.append(exit_code_of(build_and_die, *planned, nth, how))
        visible = {n: d for n, d in files_of(out).items() if not n.startswith("_spool-")}
        check_output(visible, undisturbed)

        build_run(plan_run(*planned))
        assert check_output(files_of(out), undisturbed)

    assert exit_codes == [KILLED] * calls + [0]


# --- the pipeline ---


def write_in_pipeline(
    pipeline: beam.Pipeline, run: SmallRun, limits: GateLimits, expected: list[ShardInfo]
) -> Any:
    claim(run)
    with pipeline as root:
        shards = root | "Shards" >> beam.Create(run.shards).with_output_types(ShardPlan)
        published = root | "Plan" >> beam.Create([run.plan]).with_output_types(JobPlan)
        infos = shards | WriteShards(run.job, published, limits)
        assert_that(infos, equal_to(expected))
    return root.result


def test_the_pipeline_writes_what_the_function_writes(
    test_pipeline: Callable[[], beam.Pipeline], tmp_path: Path
) -> None:
    data = write_set(tmp_path / "data", 12)
    (data[0] / "a003.jpg").write_bytes(b"<html>")
    for name in ("out", "direct"):
        (tmp_path / name).mkdir()
    direct = build_shards(plan_run(*data, tmp_path / "direct", num_shards=5))
    run = plan_run(*data, tmp_path / "out", num_shards=5)
    PROGRESS.reset()

    result = write_in_pipeline(test_pipeline(), run, GateLimits(), direct)

    assert contents(tmp_path / "out") == contents(tmp_path / "direct")
    counters = result.metrics().query(MetricsFilter().with_namespace("beam_tfrec"))["counters"]
    assert {counter.key.metric.name: counter.committed for counter in counters} == {
        "records": 11,
        "rejected": 1,
        "bytes": sum(info.bytes for info in direct),
        "shards_done": 5,
    }
    assert (PROGRESS.done, PROGRESS.rejected, PROGRESS.shards_done) == (12, 1, 5)
    assert PROGRESS.bytes == sum(info.bytes for info in direct)
