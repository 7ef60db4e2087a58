import dataclasses
import errno
import json
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.fields import EncodedImage
from beam_tfrec.schemas.layouts import Built, Labels, Unfit
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.manifest import plan_digest
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.shards import ShardInfo, file_sum
from beam_tfrec.transforms.shard_index import index_from_parquet, index_to_parquet
from tests.children import KILLED, exit_code_of
from tests.coco_command import grow, source_ids
from tests.conftest import jpeg_bytes, thorough
from tests.invariants import check_output, files_of
from tests.small_images import chunk, ihdr, jpeg, png
from tests.small_runs import (
    SmallRun,
    SmallSet,
    build_and_die,
    build_run,
    build_shards,
    make_small,
    plan_run,
    touch,
    write_all,
    write_set,
)

STEM = "train-00000-of-00001"
RECEIPT, PARQUET, IDX = f"_receipts/{STEM}.json", f"index/{STEM}-4.parquet", f"index/{STEM}-4.idx"
DATA = f"{STEM}-4.tfrec"


@pytest.fixture
def small(tmp_path: Path) -> SmallSet:
    """Four images in one shard."""
    return make_small(tmp_path, 4, num_shards=1)


def build(run: SmallRun) -> ShardInfo:
    (info,) = build_shards(run)
    return info


# Six zeros in a stored block of zlib, the same for every compressor.
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


def test_the_bytes_of_a_shard_never_change(tmp_path: Path) -> None:
    # The images are made by hand, without a codec. A change here is a breaking change: it raises
    # the format version.
    out, images, annotations = tmp_path / "out", tmp_path / "images", tmp_path / "instances.json"
    out.mkdir()
    (images / "b").mkdir(parents=True)
    small_png = png(ihdr(), STORED_PIXELS)
    for name, image in (("a.jpg", jpeg()), ("b/c.jpg", small_png), ("d.jpg", jpeg())):
        (images / name).write_bytes(image)
    annotations.write_text(json.dumps(GOLDEN_COCO))
    run = plan_run(images, annotations, out, num_shards=1)
    info = build(run)
    assert [sample.key for sample in run.shards[0].samples] == ["1", "2", "3"]
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


@dataclasses.dataclass(frozen=True)
class OddLayout(DetectionLayout):
    """A user's layout that does something odd with the image of key 2."""

    odd: Callable[[], Any] = dict

    def build(self, sample: Sample, images: Sequence[EncodedImage], labels: Labels) -> Built:
        if sample.key == "2":
            return self.odd()
        return super().build(sample, images, labels)


def raising(error: BaseException) -> Callable[[], Any]:
    def odd() -> Any:
        raise error

    return odd


def built_of(kind: Kind, values: list) -> Callable[[], Built]:
    return lambda: Built({"key": (kind, values)}, [], [], [])


def check_that_key_2_is_rejected(small: SmallSet, code: str, detail: str, **planned: Any) -> None:
    run = small.plan(**planned)
    info = build(run)
    ids = {"key": "2", "annotation_ids": (101, 102), "file_name": "a001.jpg", "shard": STEM}
    rejected = Rejected(code=code, stage="write_shards", split="train", detail=detail, **ids)
    assert info.rejected == [rejected]
    assert (info.planned, info.records, info.file) == (4, 3, f"{STEM}-3.tfrec")
    assert (info.annotations_listed, info.annotations_written) == (8, 6)
    kept = [sample.key for sample in run.shards[0].samples if sample.key != "2"]
    assert [*map(str, source_ids(small.out))] == kept
    rows = index_from_parquet((small.out / f"index/{STEM}-3.parquet").read_bytes())
    assert [row.key for row in rows] == kept


CUT = jpeg_bytes(64, 48)[:-10]
UNFIT_IMAGES = [
    (CUT, "E-IMG-TRUNCATED", f"no end marker in {len(CUT)} bytes"),
    (jpeg_bytes(64, 40), "E-IMG-SIZE", "64 x 40 in the file, 64 x 48 annotated"),
]


@pytest.mark.parametrize(("image", "code", "detail"), UNFIT_IMAGES)
def test_an_unfit_image_is_rejected(small: SmallSet, image: bytes, code: str, detail: str) -> None:
    small.image(1).write_bytes(image)
    check_that_key_2_is_rejected(small, code, detail)


NOT_OURS = "no errno: not of the machine"
TOO_LARGE = "OverflowError: int64 features take -2^63 to 2^63-1, got 9223372036854775808"
HUGE = [bytes(2**20)] * 2048  # the same megabyte many times
NOT_BUILT = [
    (built_of(Kind.BYTES, HUGE), "E-EX-TOO-LARGE", "2147491869 bytes, the limit is 2147483647"),
    (built_of(Kind.INT64, [2**63]), "E-EX-FAILED", TOO_LARGE),
    (raising(OSError(NOT_OURS)), "E-EX-FAILED", f"OSError: {NOT_OURS}"),
    # Text that differs by run or terminal stays out of the receipt.
    (
        raising(ValueError("<object at 0x7fa3b2c4d5e6> \udcff\x1b[0m")),
        "E-EX-FAILED",
        "ValueError: <object at 0x> \\udcff\\x1b[0m",
    ),
    (raising(Unfit("E-IMG-SIZE", "too small for me")), "E-IMG-SIZE", "too small for me"),
    (raising(Unfit("E-BOX-EMPTY", "none")), "E-EX-FAILED", "E-BOX-EMPTY: none"),
]


@pytest.mark.parametrize(("odd", "code", "detail"), NOT_BUILT)
def test_an_example_that_cannot_be_built_is_rejected(
    small: SmallSet, odd: Callable[[], Any], code: str, detail: str
) -> None:
    check_that_key_2_is_rejected(small, code, detail, layout=OddLayout(odd=odd))


MACHINE_ERRORS = [
    MemoryError(),
    RecursionError(),
    OSError(errno.ENOSPC, "full"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", MACHINE_ERRORS)
def test_errors_of_the_machine_are_never_rejects(small: SmallSet, error: BaseException) -> None:
    run = small.plan(layout=OddLayout(odd=raising(error)))
    with pytest.raises(type(error)) as raised:
        build(run)
    assert raised.value is error
    assert small.made() == {}


@pytest.mark.parametrize("change", [Path.unlink, grow, touch])
def test_a_source_that_changes_before_it_is_read_fails_the_shard(
    small: SmallSet, change: Callable[[Path], None]
) -> None:
    run = small.plan()
    change(small.image(2))
    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED .*/a002\.jpg: .*; run again when"):
        build(run)
    assert small.made() == {}


@dataclasses.dataclass(frozen=True)
class CodedLayout(DetectionLayout):
    """A layout that depends on a codec, which has another version on workers."""

    def options(self) -> dict[str, str]:
        here = threading.current_thread() is threading.main_thread()
        return super().options() | {"codec": "coder 1" if here else "coder 2"}


def test_a_worker_with_another_codec_than_planned_writes_nothing(small: SmallSet) -> None:
    run = small.plan(layout=CodedLayout())
    line = f"^E-ARG {small.out}: codec is 'coder 1' in the plan, 'coder 2' on this worker; give"
    with ThreadPoolExecutor(1) as worker, pytest.raises(RuntimeError, match=line):
        worker.submit(build, run).result()
    assert small.made() == {}


def rebuild(run: SmallRun, caplog: pytest.LogCaptureFixture) -> tuple[str, ShardInfo]:
    """Build again; return whether the shard was `kept` or built (`wrote`), and its info."""
    with caplog.at_level(logging.DEBUG, logger="beam_tfrec.transforms.build_shard"):
        info = build(run)
    (message,) = caplog.messages
    return message.split()[0], info


@pytest.mark.parametrize("gone", [[DATA], [PARQUET], [IDX, RECEIPT]])
def test_missing_files_are_built_again_with_equal_bytes(
    small: SmallSet, caplog: pytest.LogCaptureFixture, gone: list[str]
) -> None:
    run = small.plan()
    first = build(run)
    before = small.made()
    for name in gone:
        (small.out / name).unlink()
    assert rebuild(run, caplog) == ("wrote", first)
    assert small.made() == before


def test_a_touched_source_is_hashed_and_accepted(
    small: SmallSet, caplog: pytest.LogCaptureFixture
) -> None:
    first = build(small.plan())
    before = small.made()
    touch(small.image(1))
    run = small.plan()
    small.image(2).unlink()  # not read, since its pin equals the index's
    assert rebuild(run, caplog) == ("kept", first)
    assert small.made() == before


def flip(data: bytes, at: int = -1) -> bytes:
    """Change a bit of a byte."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def test_a_source_with_other_bytes_stops_the_resumed_run(small: SmallSet) -> None:
    build(small.plan())
    before = small.made()
    small.image(1).write_bytes(flip(small.image(1).read_bytes(), -3))
    touch(small.image(1))
    line = f"^E-SRC-CHANGED {small.image(1)}: has changed since {STEM} was written; restore it"
    with pytest.raises(RuntimeError, match=line):
        build(small.plan())
    assert small.made() == before


def edit_receipt(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), **changes}).encode()


def edit_rows(edit: Callable[[list], list]) -> Callable[[bytes], bytes]:
    return lambda data: index_to_parquet(edit(index_from_parquet(data)))


rekeyed = edit_rows(lambda rows: [msgspec.structs.replace(rows[0], key="77"), *rows[1:]])
drop_last_row = edit_rows(lambda rows: rows[:-1])
NESTED = b'{"a": ' + b"[" * 10_000  # deeper than a parser follows
NO_PARQUET = "index must be a Parquet file of records, got"
SPOILT = [
    (RECEIPT, edit_receipt(plan="00ff"), f"is the receipt of {STEM} of plan 00ff, this run's is"),
    (RECEIPT, edit_receipt(index=3), "is the receipt of train-00003-of-00001"),
    (RECEIPT, lambda _: NESTED, r"is not a receipt \("),
    (DATA, lambda data: data[:-1], "has CRC-32C"),
    (DATA, flip, "has CRC-32C"),
    (PARQUET, lambda _: b"garbage", NO_PARQUET),
    (PARQUET, rekeyed, "describes other records"),
    (PARQUET, drop_last_row, "describes other records"),
]
SPOILT_WITHOUT_DATA = [
    (RECEIPT, edit_receipt(sha256="00"), "has other content than this run would write"),
    (PARQUET, drop_last_row, "describes other records"),
    (IDX, lambda data: data + b"9 9\n", "has other content than this run would write"),
]


@pytest.mark.parametrize(
    ("name", "edit", "what", "gone"),
    [*((*row, False) for row in SPOILT), *((*row, True) for row in SPOILT_WITHOUT_DATA)],
)
def test_a_file_that_is_there_and_differs_is_a_conflict(
    small: SmallSet, name: str, edit: Callable[[bytes], bytes], what: str, gone: bool
) -> None:
    run = small.plan()
    build(run)
    small.put([name], edit((small.out / name).read_bytes()))
    if gone:
        (small.out / DATA).unlink()
    before = small.made()
    fault = rf"^E-OUT-CONFLICT {small.out}/{name}: {what}.*; give another --output"
    with pytest.raises(RuntimeError, match=fault):
        build(run)
    assert small.made() == before


def test_a_run_that_was_overwritten_claims_no_shard(small: SmallSet) -> None:
    with pytest.raises(
        RuntimeError, match=rf"^E-OUT-PLAN {small.out}: _plan\.json was deleted or replaced"
    ):
        write_all(small.plan())
    assert small.made() == {}


def test_a_file_of_equal_size_but_other_bytes_is_a_conflict(small: SmallSet) -> None:
    build(small.plan())
    foreign = flip((small.out / DATA).read_bytes())
    for path in small.out.rglob("*.*"):
        path.unlink()
    small.put([DATA], foreign)
    for _ in range(2):  # a rerun does not accept it either
        with pytest.raises(RuntimeError, match=rf"^E-OUT-CONFLICT {small.out}/{DATA}: has CRC-32C"):
            build(small.plan())
    assert list(small.made()) == [DATA]
    assert (small.out / DATA).read_bytes() == foreign


# Calls of write, fsync and link for two shards: a small file takes 4, a shard 1 + 3 and 3 small
# files, the probe and the plan 1 small file each, the commit 9. Each of 3 new folders takes 1.
CALLS_OF_A_RUN = 79


@pytest.mark.parametrize(
    ("how", "first", "step"),
    [("torn", 1, 9), thorough("torn", 4, 3), thorough("whole", 2, 3), thorough("named", 3, 3)],
)
def test_a_run_killed_at_any_call_resumes_to_the_same_files(
    tmp_path: Path, how: str, first: int, step: int
) -> None:
    images, annotations = write_set(tmp_path / "data", 6)
    build_run(plan_run(images, annotations, tmp_path / "undisturbed"))
    undisturbed = files_of(tmp_path / "undisturbed")
    exit_codes = []
    for nth in range(first, CALLS_OF_A_RUN + 2, step):
        out = tmp_path / f"killed at {nth}"
        planned = images, annotations, out
        exit_codes.append(exit_code_of(build_and_die, *planned, nth, how))
        visible = {n: d for n, d in files_of(out).items() if not n.startswith("_spool-")}
        check_output(visible, undisturbed)
        build_run(plan_run(*planned))
        assert check_output(files_of(out), undisturbed)
    ended = [0] if nth > CALLS_OF_A_RUN else []
    assert exit_codes == [KILLED] * (len(exit_codes) - len(ended)) + ended
