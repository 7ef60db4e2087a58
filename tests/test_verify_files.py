"""Files of other programs, TensorFlow's own writer first: structure, schema, images, lies."""

import gzip
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import tensorflow as tf

from pipelines.verify import VerifyConfig, verify
from tests.coco_command import PROJECT
from tests.conftest import jpeg_bytes
from tests.small_images import chunk, ihdr, png
from tests.test_walk_frames import claiming
from transforms.storage import Access
from transforms.verify import Report, find_paths

JPEG = jpeg_bytes(8, 8)
LEAVE = "restore the file from its source, or leave the record out"
MEND = "make the record again from its image, or leave it out"


def feature(values: Sequence) -> tf.train.Feature:
    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(**values: Sequence) -> bytes:
    features = {key: feature(found) for key, found in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def sequence_example(context: Mapping[str, Sequence], steps: Mapping[str, Sequence]) -> bytes:
    lists = {
        key: tf.train.FeatureList(feature=list(map(feature, found))) for key, found in steps.items()
    }
    return tf.train.SequenceExample(
        context=tf.train.Features(feature={key: feature(v) for key, v in context.items()}),
        feature_lists=tf.train.FeatureLists(feature_list=lists),
    ).SerializeToString()


def write(path: Path, records: Sequence[bytes], compression: str = "") -> Path:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


def printed(capsys: pytest.CaptureFixture[str], *paths: Path, deep: bool = False) -> list[str]:
    """Return what verify prints but for its last line, the first path's folder left out."""
    found = verify(VerifyConfig(tuple(map(str, paths)), deep=deep))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("all is well") is not found
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    return [line.replace(f"{folder}/", "") for line in lines[:-1]]


def test_a_schema_over_all_records_of_all_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "a.tfrecord", [example(image=[JPEG], label=[3], box=[0.5, 1.0])])
    other = write(
        tmp_path / "b.tfrecord", [example(image=[JPEG], box=[0.25]), example(image=[b""])]
    )
    assert printed(capsys, one, other) == [
        "features of 3 Examples:",
        "  box    float  in 2 of 3  1 to 2 values",
        "  image  bytes  in 3 of 3  1 value        2 jpeg",
        "  label  int64  in 1 of 3  1 value",
    ]


def test_feature_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        sequence_example({"id": [b"a"]}, {"frame": [[JPEG], [JPEG]], "score": []}),
        sequence_example({"id": [b"b"]}, {"frame": [[JPEG]], "score": [[0.5, 1.0]]}),
    ]
    assert printed(capsys, write(tmp_path / "a.tfrecord", records)) == [
        "features of 2 Examples:",
        "  frame  bytes  in 2 of 2  1 value in each of 1 to 2 steps        3 jpeg",
        "  id     bytes  in 2 of 2  1 value",
        "  score  float  in 2 of 2  0 to 2 values in each of 0 to 1 steps",
    ]


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files(
    compression: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.tfrecord", [example(x=[n]) for n in range(9)], compression)
    assert printed(capsys, path) == [
        f"a.tfrecord: compressed with {compression}",
        "features of 9 Examples:",
        "  x  int64  in 9 of 9  1 value",
    ]
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    lines = printed(capsys, path)
    assert lines[0].startswith("E-VER-FRAME a.tfrecord"), lines
    content = gzip.decompress(data) if compression == "GZIP" else zlib.decompress(data)
    pack = gzip.compress if compression == "GZIP" else zlib.compress
    path.write_bytes(pack(content[:-1]))
    assert printed(capsys, path)[0].startswith("E-VER-FRAME a.tfrecord record 8 at byte ")


def test_gzip_of_several_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.tfrecord", [example(x=[n]) for n in range(9)])
    data = path.read_bytes()
    path.write_bytes(gzip.compress(data[:50]) + gzip.compress(data[50:]))
    assert printed(capsys, path)[-1] == "  x  int64  in 9 of 9  1 value"


def test_records_that_are_no_examples_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.tfrecord", [example(x=[1]), b"hello, world", b"\xff" * 20])
    assert printed(capsys, path) == [
        "features of 1 Example:",
        "  x  int64  in 1 of 1  1 value",
        f"2 records of other bytes than Examples: the first is record 1 of a.tfrecord at byte"
        f" {16 + len(example(x=[1]))}",
    ]


def test_a_feature_of_two_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [example(x=[1]), example(x=[1.5]), example(x=[2])]
    path = write(tmp_path / "a.tfrecord", records)
    assert printed(capsys, path)[0] == (
        f"E-VER-EXAMPLE a.tfrecord record 1 at byte {16 + len(records[0])}: feature 'x' is of float"
        " in 1 records, and of int64 in 2; write the feature with one kind: a reader's spec can"
        " name only one"
    )


def test_a_corrupt_image_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [example(image=[data]) for data in (JPEG, JPEG[:-20], JPEG, b"<html>")]
    path = write(tmp_path / "a.tfrecord", records)
    second, last = 16 + len(records[0]), sum(16 + len(record) for record in records[:3])
    assert printed(capsys, path)[:2] == [
        f"E-VER-IMAGE a.tfrecord record 1 at byte {second}: the image of {len(JPEG) - 20} bytes in"
        f" 'image' is damaged: no end marker in {len(JPEG) - 20} bytes; {MEND}",
        f"E-VER-IMAGE a.tfrecord record 3 at byte {last}: 1 values of 'image' are no image, 3 are"
        f" (the first); {MEND}",
    ]


def test_deep_decodes_pixels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few_pixels = png(ihdr(8, 8), chunk(b"IDAT", zlib.compress(b"\0" * 10)))
    path = write(tmp_path / "a.tfrecord", [example(image=[few_pixels])])
    assert [line[:11] for line in printed(capsys, path)] != ["E-VER-IMAGE"]
    assert printed(capsys, path, deep=True)[0].startswith("E-VER-IMAGE a.tfrecord record 0 at byte")


@pytest.mark.parametrize("at", [0, 7, 8, 11])
def test_a_damaged_header(at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.tfrecord", [example(x=[n]) for n in range(3)])
    data = bytearray(path.read_bytes())
    second = len(data) // 3
    data[second + at] ^= 1
    path.write_bytes(data)
    assert printed(capsys, path)[0].startswith(
        f"E-VER-FRAME a.tfrecord record 1 at byte {second}: the length "
    )


@pytest.mark.parametrize("size", [2**62, 81])
def test_a_tiny_file_that_claims_a_huge_record(size: int, tmp_path: Path) -> None:
    """Under 64 MB, the interpreter with all imports included."""
    path = tmp_path / "a.tfrecord"
    path.write_bytes(claiming(size))
    program = (
        "import resource, sys, pipelines.verify as verify\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "try: verify.run(sys.argv[1:])\n"
        "finally: print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=PROJECT, capture_output=True, text=True
    )
    assert run.returncode == 7, run.stderr
    line, *_, peak_kb = run.stdout.splitlines()
    assert line == (
        f"E-VER-FRAME {path} record 0 at byte 0: a record of {size} bytes is cut off: 84 bytes are"
        f" left for it and its checksum; the last 96 bytes of the file were not read; {LEAVE}"
    )
    assert int(peak_kb) < 64_000


def test_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a\u202e.tfrecord", [example(**{"x\x1b[2J": [1]})])
    path.write_bytes(path.read_bytes() + b"\0")
    text = "\n".join(printed(capsys, path))
    assert text.isascii() and "\x1b" not in text
    assert "x\\x1b[2J" in text and "a\\u202e.tfrecord" in text


def test_more_features_than_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = example(**{f"x{n:05}": [n] for n in range(1001)})
    lines = printed(capsys, write(tmp_path / "a.tfrecord", [record]))
    assert len(lines) == 1002
    assert lines[-1] == "  more than 1000 features: the others are not listed"


def test_a_folder_is_its_record_files(tmp_path: Path) -> None:
    for name in ("b.tfrecord", "a.tfrec", "t.tfrecord-00000-of-00001", "c.tfrecord.gz", "d.json"):
        (tmp_path / name).touch()
    data_sets, files = find_paths([str(tmp_path)], Access(), Report())
    assert data_sets == []
    assert [Path(name).name for name in files] == [
        "a.tfrec",
        "b.tfrecord",
        "c.tfrecord.gz",
        "t.tfrecord-00000-of-00001",
    ]
