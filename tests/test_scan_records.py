"""Statistics of shards by reading them: those of receipts, and of whatever strangers wrote."""

import gzip
import json
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines import arrays, folder, pairs, table
from schemas.example import encode_example
from schemas.features import Kind
from schemas.layouts.detection import DetectionLayout
from schemas.manifest import Manifest, from_json, index_names_of, read_manifest
from schemas.sequence_example import encode_sequence_example
from schemas.shards import ShardInfo, receipt_name, shard_stem
from schemas.statistics import Statistics
from schemas.tensors import encode_tensor
from schemas.tfrecord import frame_record
from tests.array_runs import random_images
from tests.coco_command import run_coco
from tests.conftest import jpeg_bytes
from tests.pipeline_command import run_pipeline
from tests.small_runs import build_run, plan_run, write_set
from tests.test_pairs import sources, write_pairs
from transforms.report import scan_records
from transforms.report.scan_records import ClassNames, Scan, scan_file, scan_shard
from transforms.storage import DEFAULT_ACCESS

JPEG = jpeg_bytes(64, 48)
FACTS = ("formats", "objects", "box_sides", "class_records", "class_objects")
"""What not every layout tells of."""


def manifest_of(out: Path) -> Manifest:
    return read_manifest((out / "manifest.json").read_bytes(), "manifest.json")


def receipts_of(out: Path) -> list[Statistics]:
    """Return the statistics of the receipts, in the order of the manifest's shards."""
    infos = [
        from_json(path.read_bytes(), ShardInfo) for path in sorted((out / "_receipts").iterdir())
    ]
    return [info.statistics for info in sorted(infos, key=lambda info: (info.split, info.index))]


def scans_of(out: Path) -> list[Scan]:
    manifest = manifest_of(out)
    places = range(len(manifest.shards))
    return [scan_shard(str(out), DEFAULT_ACCESS, manifest, place) for place in places]


def without_samples(found: Statistics) -> Statistics:
    return msgspec.structs.replace(found, samples=[])


# --- data sets of ours ---


def coco_of(
    *flags: str, files: Sequence[str] = ("instances",), split: str = "train"
) -> Callable[..., None]:
    def make(shared: Path, out: Path) -> None:
        root = shared / f"coco_{split}"
        given = [root / "annotations" / f"{name}.json" for name in files]
        panoptic = ["--panoptic_images", root / "annotations" / "panoptic"]
        command = ["--images", root / "images", "--annotations", *given, "--output", out]
        command += [*(panoptic if "panoptic" in files else []), "--num_shards", 3, *flags]
        ended = run_coco(*command)
        assert ended.code == 0, ended.err

    return make


def folder_of(*flags: str) -> Callable[..., None]:
    def make(shared: Path, out: Path) -> None:
        run(folder.run, "--images", shared / "classes", "--num_shards", 2, "--output", out, *flags)

    return make


def pairs_of(*flags: str) -> Callable[..., None]:
    def make(shared: Path, out: Path) -> None:
        run(pairs.run, *sources(write_pairs(out.parent / "in")), "--output", out, *flags)

    return make


def arrays_of(encoding: str) -> Callable[..., None]:
    def make(shared: Path, out: Path) -> None:
        file = out.parent / "items.npz"
        np.savez(file, x=random_images(9), y=np.arange(9) % 3)
        flags = ["--image_array", "x", "--label_array", "y", "--encoding", encoding]
        run(arrays.run, "--arrays", file, *flags, "--output", out, "--num_shards", 2)

    return make


def table_of(*flags: str, images: bool = False) -> Callable[..., None]:
    def make(shared: Path, out: Path) -> None:
        rows: list[dict[str, Any]] = [
            {"id": n, "kind": "ab"[n % 2], "steps": [n, n], "photo": f"{n}.jpg"} for n in range(8)
        ]
        rows = rows if images else [{**row, "photo": ""} for row in rows]
        file, photos = out.parent / "rows.jsonl", out.parent / "photos"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        for n in range(8 if images else 0):
            photos.mkdir(exist_ok=True)
            (photos / f"{n}.jpg").write_bytes(jpeg_bytes(8 + n, 8))
        pictures = ["--image_root", photos, "--image_column", "photo"] if images else []
        run(table.run, "--table", file, "--output", out, "--num_shards", 2, *pictures, *flags)

    return make


def run(command: Any, *arguments: object) -> None:
    ended = run_pipeline(command, *arguments)
    assert ended.code == 0, ended.err


BOTH = ("instances", "panoptic")
BOXED = set(FACTS)
CLASSED = {"formats", "class_records"}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (coco_of(), BOXED),
        (coco_of("--layout", "keras"), BOXED),
        (coco_of("--layout", "tfds"), BOXED),
        (coco_of("--layout", "tfds", files=("panoptic",)), BOXED),
        (coco_of("--layout", "tfds", "--max_rejected", "7", files=BOTH), BOXED),
        (coco_of("--features", "boxes,masks,polygons,panoptic", files=BOTH), BOXED),
        (coco_of(split="val", files=("instances", "person_keypoints", "captions")), BOXED),
        (coco_of("--resize", "64x48", "--orientation", "upright"), BOXED),
        (folder_of(), CLASSED),
        (folder_of("--layout", "imagenet"), CLASSED),
        (folder_of("--layout", "tutorial"), CLASSED),
        (folder_of("--layout", "tensor", "--resize", "16x16"), CLASSED),
        (pairs_of(), {"formats"}),
        (pairs_of("--tensors"), {"formats"}),
        (arrays_of("tensor"), CLASSED),
        (arrays_of("raw"), CLASSED),
        (table_of(), set()),
        (table_of("--label_column", "kind"), {"class_records"}),
        (table_of("--label_column", "kind", images=True), CLASSED),
        (table_of("--label_column", "kind", "--sequence", "steps"), {"class_records"}),
    ],
)
def test_a_scan_finds_what_the_receipt_says(
    make: Callable[..., None], told: set[str], shared_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    make(shared_data, out)

    receipts, scans = receipts_of(out), scans_of(out)

    assert [scan.statistics for scan in scans] == receipts
    assert [scan.notes for scan in scans] == [[]] * len(receipts)
    manifest = manifest_of(out)
    assert [found.records for found in receipts] == [shard.records for shard in manifest.shards]
    for found in receipts:
        assert {name for name in FACTS if getattr(found, name)} == told
        assert len([sample for sample in found.samples if sample.label == -1]) == min(
            24, found.records
        )
    for shard, found in zip(manifest.shards, receipts, strict=True):
        strangers = scan_file(str(out / shard.file), DEFAULT_ACCESS).statistics
        if "class_name" not in {feature.key for feature in manifest.features}:
            assert without_samples(strangers) == without_samples(found)


def test_the_scan_of_a_tensor_s_file_numbers_classes_by_their_appearance(tmp_path: Path) -> None:
    tensor = encode_tensor(np.zeros((4, 2, 3), np.float32))
    file = write(
        tmp_path / "a.tfrecord",
        *(example(image=[tensor], class_name=[name]) for name in (b"dog", b"cat", b"dog")),
    )
    names = ClassNames()
    found = scan_file(str(file), DEFAULT_ACCESS, names=names)
    assert (found.statistics.class_records, names.by_label) == ({0: 2, 1: 1}, {0: "dog", 1: "cat"})
    assert found.statistics.formats == {"tensor": 3}
    other = write(tmp_path / "b.tfrecord", example(image=[tensor], class_name=[b"cat"]))
    again = scan_file(str(other), DEFAULT_ACCESS, names=names)
    assert again.statistics.class_records == {1: 1}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A small data set of one shard of four photos."""
    data = write_set(tmp_path / "data", 4)
    build_run(plan_run(*data, tmp_path / "out", num_shards=1, layout=DetectionLayout()))
    return tmp_path / "out"


def shard_of(out: Path) -> Path:
    return out / manifest_of(out).shards[0].file


@pytest.mark.parametrize("at", [0, 20, 700])
def test_damaged_records_of_ours_are_told_and_the_others_count(out: Path, at: int) -> None:
    data = bytearray(shard_of(out).read_bytes())
    data[at] ^= 1
    shard_of(out).write_bytes(bytes(data))
    (scan,) = scans_of(out)
    assert scan.statistics.records == 3
    (note,) = scan.notes
    assert note.startswith(
        f"{shard_of(out).name}: not counted: 1 damaged record; record 0 at byte 0: "
    )
    (receipt,) = receipts_of(out)
    left = [sample for sample in receipt.samples if sample.number]
    scanned = {(found.digest, found.label, found.key) for found in scan.statistics.samples}
    assert scanned == {(found.digest, found.label, found.key) for found in left}


@pytest.mark.parametrize("data", [b"", b"no index", None])
def test_without_an_index_keys_are_numbers(out: Path, data: bytes | None) -> None:
    index = out / index_names_of(manifest_of(out))[0][0]
    index.unlink()
    if data is not None:
        index.write_bytes(data)
    (receipt,), (scan,) = receipts_of(out), scans_of(out)
    assert without_samples(scan.statistics) == without_samples(receipt)
    name = shard_of(out).name
    assert scan.notes == [f"{name}: its index is damaged or missing, and tells of no keys"]
    assert {sample.key for sample in scan.statistics.samples} == {f"{name}-{n}" for n in range(4)}


def test_a_shard_that_is_gone_is_told(out: Path) -> None:
    shard_of(out).rename(out / "elsewhere")
    with pytest.raises(RuntimeError, match=r"^E-VER-MISSING .* is not there, or no file"):
        scans_of(out)


def test_receipts_have_the_names_that_a_report_looks_for(out: Path) -> None:
    assert (out / receipt_name(shard_stem("train", 0, 1))).is_file()


# --- strangers' files ---


def example(**features: Any) -> bytes:
    """Return an Example of lists; the kind is that of the first value."""
    kinds = {bytes: Kind.BYTES, float: Kind.FLOAT, int: Kind.INT64}
    return encode_example(
        {key.replace("__", "/"): (kinds[type(v[0])], v) for key, v in features.items()}
    )


def write(path: Path, *records: bytes) -> Path:
    path.write_bytes(b"".join(part for record in records for part in frame_record([record])))
    return path


COCO = example(
    image__encoded=[JPEG],
    image__object__bbox__xmin=[0.0, 0.5],
    image__object__bbox__xmax=[1.0, 1.0],
    image__object__bbox__ymin=[0.0, 0.5],
    image__object__bbox__ymax=[1.0, 1.0],
    image__object__class__label=[3, 3],
    image__object__class__text=[b"cat", b"cat"],
    image__object__mask=[JPEG, JPEG],  # no picture of the record's
)
COUNTED = Statistics(
    records=2,
    formats={"jpeg": 2},
    widths_px={12: 2},
    heights_px={11: 2},
    aspects={1: 2},
    image_bytes={18: 2},
    objects={0: 1, 2: 1},
    box_sides={-2: 1, 0: 1},
    class_records={3: 1},
    class_objects={3: 2},
    runs=2,
    expected_runs=2.0,
)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
def test_a_file_of_model_garden_s_packed_or_not(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    file = write(tmp_path / "a.tfrecord", COCO, example(image__encoded=[JPEG]))
    file.write_bytes(pack(file.read_bytes()))
    names = ClassNames()
    found = scan_file(str(file), DEFAULT_ACCESS, names=names)
    assert without_samples(found.statistics) == COUNTED
    assert (found.notes, found.bytes) == ([], file.stat().st_size)
    assert (found.roles.images, names.by_label) == (("image/encoded",), {3: "cat"})
    keys = {(s.label, s.number, s.key) for s in found.statistics.samples}
    assert keys == {(-1, 0, "a.tfrecord-0"), (-1, 1, "a.tfrecord-1"), (3, 0, "a.tfrecord-0")}


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (
            example(image=[JPEG], bbox=[0.0, 0.0, 32.0, 24.0], category_id=[7], id=[1]),
            {"objects": {1: 2}, "box_sides": {-2: 2}, "class_records": {7: 2}},
        ),
        (
            example(image=[JPEG], objects__bbox=[0.0, 0.0, 0.5, 0.5], objects__label=[7]),
            {"objects": {1: 2}, "box_sides": {-2: 2}, "class_records": {7: 2}},
        ),
        (example(image=[JPEG], target=[1]), {"class_records": {1: 2}}),
        (example(**{"image": [JPEG], "class": [1]}), {"class_records": {1: 2}}),
        (example(image=[JPEG], target=[0.5]), {}),
    ],
)
def test_records_of_others_are_understood(
    record: bytes, changes: dict[str, Any], tmp_path: Path
) -> None:
    found = scan_file(str(write(tmp_path / "a", record, record)), DEFAULT_ACCESS).statistics
    told = {name: getattr(found, name) for name in ("objects", "box_sides", "class_records")}
    assert told == {"objects": {}, "box_sides": {}, "class_records": {}, **changes}
    assert found.formats == {"jpeg": 2}


def test_what_does_not_count_is_told(tmp_path: Path) -> None:
    box = {"objects__label": [1]}
    file = write(
        tmp_path / "a.tfrecord",
        example(image=[JPEG], objects__bbox=[0.0, 0.0, 1.0, 1.0], **box),
        example(image=[JPEG[:-40]], objects__bbox=[0.0, 0.0, math.nan, 1.0], **box),
        example(image=[JPEG], objects__bbox=[0.0, 0.0, 1.0], **box),
        b"\xff is no Example",
    )
    damaged = bytearray(frame_record([COCO])[0] + b"".join(frame_record([COCO])[1:]))
    damaged[-1] ^= 1
    whole = file.stat().st_size
    file.write_bytes(file.read_bytes() + damaged)
    found = scan_file(str(file), DEFAULT_ACCESS)
    assert found.statistics.records == 3
    damage = f"record 4 at byte {whole}: its data's checksum is "
    assert [note.partition(damage)[0] for note in found.notes] == [
        f"{file}: not counted: 1 damaged record; ",
        f"{file}: not counted: 1 image that cannot be read",
        f"{file}: not counted: 1 object with a box without an area",
        f"{file}: not counted: 1 record with boxes that lack edges or numbers",
        f"{file}: not counted: 1 record without an Example",
    ]
    assert found.statistics.class_objects == {1: 3}


def test_a_file_that_is_cut_off_within_its_packing_is_told(tmp_path: Path) -> None:
    file = write(tmp_path / "a.gz", *[COCO] * 50)
    file.write_bytes(gzip.compress(file.read_bytes())[:-200])
    found = scan_file(str(file), DEFAULT_ACCESS)
    assert found.notes and found.statistics.records < 50


def test_sequences_are_counted(tmp_path: Path) -> None:
    record = encode_sequence_example(
        {"label": (Kind.INT64, [2])}, {"frames": (Kind.BYTES, [[JPEG]])}
    )
    found = scan_file(str(write(tmp_path / "a", record)), DEFAULT_ACCESS)
    assert without_samples(found.statistics) == Statistics(
        records=1, class_records={2: 1}, runs=1, expected_runs=1.0
    )


def test_roles_come_from_the_first_records_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_records, "MAX_HEAD_RECORDS", 2)
    records = [example(image=[JPEG]), example(image=[b""]), *[COCO] * 3]
    found = scan_file(str(write(tmp_path / "a", *records)), DEFAULT_ACCESS)
    assert (found.statistics.records, found.statistics.formats) == (5, {"jpeg": 1})
    monkeypatch.setattr(scan_records, "MAX_HEAD_RECORDS", 3)
    found = scan_file(str(tmp_path / "a"), DEFAULT_ACCESS)
    assert (found.statistics.records, found.statistics.formats) == (5, {"jpeg": 4})
    monkeypatch.setattr(scan_records, "MAX_HEAD_BYTES", 1)
    assert scan_file(str(tmp_path / "a"), DEFAULT_ACCESS).statistics.formats == {"jpeg": 1}


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    found = scan_file(str(tmp_path / "a"), DEFAULT_ACCESS)
    assert (found.statistics, found.notes) == (Statistics(), [])


# --- whatever there is ---

KEYS = st.sampled_from(
    [
        *("image", "image/encoded", "image/width", "width", "height", "label", "class", "target"),
        *(f"image/object/bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax")),
        *("image/object/class/label", "image/object/class/text", "image/object/mask"),
        *("objects/bbox", "objects/label", "bbox", "category_id", "class_name", "x", ""),
    ]
)
FLOATS = st.floats(width=32) | st.sampled_from([0.0, 1.0, 0.5, -1.0, math.nan, math.inf])
BYTES = st.sampled_from([b"", b"cat", b"\xff", JPEG, JPEG[:300], encode_tensor(np.zeros((2, 2)))])
VALUES = st.one_of(
    st.tuples(st.just(Kind.FLOAT), st.lists(FLOATS, max_size=9)),
    st.tuples(st.just(Kind.INT64), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)),
    st.tuples(st.just(Kind.BYTES), st.lists(BYTES, max_size=3)),
)
RECORDS = st.dictionaries(KEYS, VALUES, max_size=9)


@given(st.lists(RECORDS | st.binary(max_size=40), max_size=8), st.randoms(), st.booleans())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_odd_records_end_no_scan(
    tmp_path: Path, records: list[Any], chance: Any, flip: bool
) -> None:
    encoded = [r if isinstance(r, bytes) else encode_example(r) for r in records]
    file = write(tmp_path / "a.tfrecord", *encoded)
    if flip and (data := bytearray(file.read_bytes())):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(bytes(data))

    found = scan_file(str(file), DEFAULT_ACCESS)

    assert found.statistics.records <= len(records)
    assert all(note.startswith(f"{file}: ") for note in found.notes)
    assert not found.notes or len(found.notes) == len(set(found.notes))
    again = msgspec.json.decode(msgspec.json.encode(found.statistics), type=Statistics)
    assert again == found.statistics
    if not flip:
        dicts = sum(isinstance(record, dict) for record in records)
        assert found.statistics.records >= dicts
