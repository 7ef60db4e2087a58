"""Size buckets: each image gets the size with the nearest shape, and each shard holds one size."""

from collections.abc import Mapping
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

import beam_tfrec
from beam_tfrec.pipelines import coco, folder
from beam_tfrec.pipelines import records as copy
from beam_tfrec.pipelines.examples import ReadExamples
from beam_tfrec.schemas.geometry.boxes import nearest_bucket, parse_buckets
from tests.coco_command import committed_by, digests, examples, rejected_of, run_pipeline, value
from tests.conftest import TEST_DATA, jpeg_bytes

COCO = TEST_DATA / "coco_train"
PHOTOS = ("--images", COCO / "images", "--annotations", COCO / "annotations/instances.json")
SIZES = {"a": (40, 40), "b": (80, 40), "c": (41, 40), "d": (30, 60), "e": (12, 10)}


@pytest.mark.parametrize(
    ("text", "buckets"),
    [
        ("64x64,96x64", ["64x64", "96x64"]),
        ("512", ["512x512"]),
        ("auto:128:64", ["128x128"]),
        ("auto:256", ["192x320", "256x256", "320x192"]),
        ("auto:128:32", ["96x160", "128x128", "160x96"]),  # areas are about equal
    ],
)
def test_buckets_are_named_or_made(text: str, buckets: list[str]) -> None:
    assert [str(bucket) for bucket in parse_buckets(text)] == buckets


@pytest.mark.parametrize(
    ("size_px", "bucket"),
    [((10, 10), "8x8"), ((8, 8), "8x8"), ((14, 10), "8x8"), ((15, 10), "16x8"), ((1, 99), "8x16")],
)
def test_the_nearest_shape_is_taken(size_px: tuple[int, int], bucket: str) -> None:
    assert str(nearest_bucket(*size_px, parse_buckets("8x8,16x8,8x16"))) == bucket


def write_photos(root: Path, sizes: Mapping[str, tuple[int, int]] = SIZES) -> Path:
    for number, (name, (width, height)) in enumerate(sizes.items()):
        path = root / ("even" if number % 2 else "odd") / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_bytes(width, height, number))
    return root


def test_a_bucket_is_a_split_of_exact_size(tmp_path: Path) -> None:
    root, out = write_photos(tmp_path / "in"), tmp_path / "out"
    (root / "odd/cut.jpg").write_bytes(jpeg_bytes(80, 40)[:-200])
    (root / "even/page.jpg").write_bytes(b"<html>")
    flags = ("--images", root, "--buckets", "32x32,32x16,16x32", "--min_bucket", 11)
    flags = (*flags, "--max_rejected", 2)
    manifest = committed_by(folder.run, out, *flags)
    splits = manifest["splits"]
    found = {name: (of["listed"], of["records"]) for name, of in splits.items()}
    assert found == {
        "train": (1, 0),
        "train_32x32": (4, 2),
        "train_32x16": (1, 1),
        "train_16x32": (1, 1),
    }
    assert splits["train"]["skipped"] == {"smaller_than_min_bucket": 1}
    keys = "image/filename", "image/width", "image/height"
    written = {
        name: sorted(
            (*(value(example, key)[0] for key in keys),) for example in examples(out, name)
        )
        for name in [*splits][1:]
    }
    assert written == {
        "train_16x32": [(b"even/d.jpg", 16, 32)],
        "train_32x16": [(b"even/b.jpg", 32, 16)],
        "train_32x32": [(b"odd/a.jpg", 32, 32), (b"odd/c.jpg", 32, 32)],
    }
    codes = [(line["split"], line["code"]) for line in rejected_of(out)]
    assert codes == [("train_32x32", "E-IMG-TYPE"), ("train_32x32", "E-IMG-TRUNCATED")]
    assert run_pipeline(folder.run, *flags, "--output", out).out.startswith("already complete")
    with beam.Pipeline("FnApiRunner") as pipeline:
        read = pipeline | ReadExamples(str(out)) | beam.combiners.Count.Globally()
        assert_that(read, equal_to([4]))
    flags_of_day = ("--images", root, "--since", out, "--output", tmp_path / "day")
    other = "have other splits or keys: buckets 32x32,32x16,16x32 fill; this run's are as given"
    assert other in run_pipeline(folder.run, *flags_of_day).fault
    without = ("--exclude", out / "rejected.jsonl", "--max_rejected", 0)
    again = committed_by(folder.run, tmp_path / "again", *flags[:-2], *without)
    assert again["splits"]["train"]["excluded"] == 2
    assert digests(tmp_path / "again", "*.tfrec") == digests(out, "*.tfrec")
    (empty := tmp_path / "empty").mkdir()
    given = ("--images", f"train={root}", f"val={empty}")
    refused = run_pipeline(folder.run, *flags[2:], *given, "--output", tmp_path / "refused")
    assert refused.fault.startswith(f"E-SET-EMPTY split val: no images in {empty}; check")


@pytest.mark.thorough
def test_records_are_those_of_a_resize_to_the_bucket(tmp_path: Path) -> None:
    out = tmp_path / "out"
    photos = (*PHOTOS, "--max_dropped", "100%", "--order", "train=input")
    committed_by(coco.run, out, *photos, "--buckets", "64x48,48x64")
    found = 0
    for size in ("64x48", "48x64"):
        resized = tmp_path / size
        committed_by(coco.run, resized, *photos, "--resize", size, "--resize_mode", "fill")
        wanted = {value(e, "image/source_id")[0]: e for e in examples(resized)}
        for example in examples(out, f"train_{size}"):
            assert example == wanted[value(example, "image/source_id")[0]]
            found += 1
        ids = [value(e, "image/source_id")[0] for e in examples(out, f"train_{size}")]
        assert ids == [name for name in wanted if name in ids]  # in the order of the input
    assert found == len(wanted)


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ("--buckets 8x8 --resize 8", "resize must come without buckets, got 8x8: leave one out"),
        ("--buckets 8x8,max:8", "buckets must be WxH,WxH or auto:SIDE:STEP, got '8x8,max:8': cor"),
        ("--buckets auto:64:0", "buckets must be WxH,WxH or auto:SIDE:STEP, got 'auto:64:0': corr"),
        ("--buckets 8x8,8", "buckets must be 1 to 100 different sizes, got 2 in '8x8,8': correct"),
        ("--buckets auto:8:64", "buckets must be 1 to 100 different sizes, got 0 in 'auto:8:64'"),
        ("--buckets 8 --resize_mode fit", "resize_mode must give the bucket's size, got fit: give"),
        ("--min_bucket 8", "min_bucket must come with buckets, got 8: add --buckets"),
        ("--min_bucket -1", "min_bucket must be at least 0, got -1: correct it"),
        (
            "--drop_similar s --buckets 8 --min_bucket 8",
            "min_bucket must come without drop_similar, got 8: remove small images from the source",
        ),
        ("--buckets 8 --since old", "since must come without buckets, got old: leave one out"),
        ("--drop_similar s --since old", "since must come without drop_similar, got old: leave"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: str, fault: str) -> None:
    with pytest.raises(ValueError) as refused:
        folder.run.configure(["--images", "in", "--output", "out", *flags.split()])
    assert str(refused.value).startswith(fault)


@pytest.mark.thorough
def test_batches_of_buckets_have_static_shapes(tmp_path: Path) -> None:
    import tensorflow as tf

    sizes = {f"{n:02}": [(40, 40), (60, 40), (40, 60)][n % 5 % 3] for n in range(50)}
    root, out = write_photos(tmp_path / "in", sizes), tmp_path / "out"
    committed_by(folder.run, out, "--images", root, "--buckets", "16x16,24x16,16x24")
    traced = []

    @tf.function(jit_compile=True)
    def step(images: tf.Tensor) -> tf.Tensor:
        traced.append(images.shape)
        return tf.reduce_mean(tf.cast(images, tf.float32))

    for batch in beam_tfrec.load(out, "train", batch_size=4, drop_remainder=True, shuffle=True):
        step(batch["image/encoded"])
    assert len(traced) == 3
    assert [len(beam_tfrec.open(out, split)) for split in ("train", "train_16x16")] == [50, 20]
    with pytest.raises(ValueError, match=r"^batches of a mixture must have one image size, got 3"):
        beam_tfrec.load({out: 1.0}, "train", batch_size=4)
    with pytest.warns(UserWarning, match="^10 records of size bucket train_16x24 are not read: "):
        beam_tfrec.load(out, "train", batch_size=12, drop_remainder=True)
    copied = [f"train_{size}={out}" for size in ("16x16", "16x24", "24x16")]
    committed_by(copy.run, tmp_path / "copy", "--records", *copied)
    assert len(beam_tfrec.load(tmp_path / "copy", "train", batch_size=4)) == 13
    whole = run_pipeline(copy.run, "--records", out, "--output", tmp_path / "whole")
    known = " ".join(sorted(copied))
    assert whole.fault == f"E-ARG {out}: has no records of split train; give {known}"


@pytest.mark.thorough
def test_hosts_read_several_splits_by_bucket_in_equal_numbers(tmp_path: Path) -> None:
    """Buckets of equal size are read as one, and no record is read twice."""
    sizes = {f"{n:03}": [(40, 40), (60, 40), (40, 60)][n % 7 % 3] for n in range(150)}
    root, out = write_photos(tmp_path / "in", sizes), tmp_path / "out"
    flags = ("--images", root, "--buckets", "16x16,24x16,16x24", "--splits", "fold*3")
    committed_by(folder.run, out, *flags, "--split_by", "hash")
    splits = ["fold0", "fold2"]
    total = len(beam_tfrec.open(out, splits))
    for hosts, drop in ((1, False), (3, True), (16, True)):
        shapes, names = [], list[bytes]()
        for host in range(hosts):
            share = {"host": host, "hosts": hosts, "drop_remainder": drop}
            dataset = beam_tfrec.load(out, splits, batch_size=2, decode_images=False, **share)
            batches = list(dataset.as_numpy_iterator())
            sides = (zip(of["image/width"], of["image/height"], strict=True) for of in batches)
            shapes.append([(*{(int(width), int(height)) for width, height in of},) for of in sides])
            names += [name for batch in batches for name in batch["image/filename"]]
            steps = beam_tfrec.steps_per_epoch(out, splits, 2 * hosts, **share)
            assert len(batches) == len(dataset) == steps
        assert all(of == shapes[0] for of in shapes)
        assert {*shapes[0]} <= {((16, 16),), ((24, 16),), ((16, 24),)}
        assert len({*names}) == len(names) > total - 3 * 2 * hosts
        if not drop:  # the batches of each bucket are spread over the epoch
            assert {*shapes[0][: len(shapes[0]) // 2]} == {*shapes[0]}
            assert len(names) == total
