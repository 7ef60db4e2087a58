"""`verify` of files by TensorFlow's own writer: structure, schema, images, false lengths."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from beam_tfrec.pipelines.verify import VerifyConfig, verify
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Kind
from tests.conftest import jpeg_bytes
from tests.small_images import chunk, ihdr, png

JPEG = jpeg_bytes(8, 8)
MEND = "write the record again from its image, or leave it out"


def valued(values: Sequence) -> tuple[Kind, Sequence]:
    """Return values with their kind."""
    kinds = {bytes: Kind.BYTES, float: Kind.FLOAT}
    return kinds.get(type(values[0]) if values else int, Kind.INT64), values


def example(**values: Sequence) -> bytes:
    return encode_example({key: valued(found) for key, found in values.items()})


def write(path: Path, records: Sequence[bytes], compression: str = "") -> Path:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


def printed_by(verify: Callable[..., bool], *arguments: object) -> tuple[bool, list[str]]:
    """Return whether there are findings, and what is printed; the last line must agree."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        found = verify(*arguments)
    lines = out.getvalue().splitlines()
    assert lines[-1].endswith("all is well") is not found
    return found, lines


def verified(*paths: object, **config: Any) -> tuple[bool, list[str]]:
    """Verify in this process."""
    return printed_by(verify, VerifyConfig(tuple(map(str, paths)), **config))


def printed(*paths: Path, deep: bool = False) -> list[str]:
    """Return what verify prints except its last line, without the first path's folder."""
    _, lines = verified(*paths, deep=deep)
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    return [line.replace(f"{folder}/", "") for line in lines[:-1]]


SIZE = len(example(x=[1]))
IMAGES = [example(image=[data]) for data in (JPEG, JPEG[:-20], JPEG, b"<html>")]
STARTS = [sum(16 + len(record) for record in IMAGES[:place]) for place in range(4)]
STEPS = [
    encode_example(
        {"id": (Kind.BYTES, [name])},
        {"frame": (Kind.BYTES, [[JPEG]] * frames), "score": (Kind.FLOAT, scores)},
    )
    for name, frames, scores in ((b"a", 2, []), (b"b", 1, [[0.5, 1.0]]))
]
HELD: Mapping[str, tuple[Sequence[bytes], list[str]]] = {
    "feature lists": (
        STEPS,
        [
            "features of 2 Examples:",
            "  frame  bytes  in 2 of 2  1 value in each of 1 to 2 steps        3 jpeg",
            "  id     bytes  in 2 of 2  1 value",
            "  score  float  in 2 of 2  0 to 2 values in each of 0 to 1 steps",
        ],
    ),
    "no Examples": (
        [example(x=[1]), b"hello, world", b"\xff" * 20],
        [
            "features of 1 Example:",
            "  x  int64  in 1 of 1  1 value",
            "2 records of other bytes than Examples: the first is record 1 of a.tfrecord at byte"
            f" {16 + SIZE}",
        ],
    ),
    "a feature of two kinds": (
        [example(x=[1]), example(x=[1.5]), example(x=[2])],
        [
            f"E-VER-EXAMPLE a.tfrecord record 1 at byte {16 + SIZE}: feature 'x' is of float in 1"
            " records, and of int64 in 2; write the feature with one kind: a reader's spec can"
            " name only one",
            "features of 3 Examples:",
            "  x  int64 or float  in 3 of 3  1 value",
        ],
    ),
    "damaged images": (
        IMAGES,
        [
            f"E-VER-IMAGE a.tfrecord record 1 at byte {STARTS[1]}: the image of {len(JPEG) - 20}"
            f" bytes in 'image' is damaged: no end marker in {len(JPEG) - 20} bytes; {MEND}",
            f"E-VER-IMAGE a.tfrecord record 3 at byte {STARTS[3]}: 1 values of 'image' are not"
            f" images, 3 are (the first); {MEND}",
            "features of 4 Examples:",
            "  image  bytes  in 4 of 4  1 value  1 damaged, 2 jpeg",
        ],
    ),
}


@pytest.mark.parametrize(("records", "lines"), HELD.values(), ids=HELD)
def test_contents_of_records(records: Sequence[bytes], lines: list[str], tmp_path: Path) -> None:
    assert printed(write(tmp_path / "a.tfrecord", records)) == lines


def test_a_schema_over_all_records_of_all_files(tmp_path: Path) -> None:
    one = write(tmp_path / "a.tfrecord", [example(image=[JPEG], label=[3], box=[0.5, 1.0])])
    others = [example(image=[JPEG], box=[0.25]), example(image=[b""])]
    assert printed(one, write(tmp_path / "b.tfrecord", others)) == [
        "features of 3 Examples:",
        "  box    float  in 2 of 3  1 to 2 values",
        "  image  bytes  in 3 of 3  1 value        2 jpeg",
        "  label  int64  in 1 of 3  1 value",
    ]


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files(compression: str, tmp_path: Path) -> None:
    records = [example(x=[n]) for n in range(9)]
    path = write(tmp_path / "a.tfrecord", records, compression)
    whole = ["features of 9 Examples:", "  x  int64  in 9 of 9  1 value"]
    assert printed(path) == whole
    path.write_bytes(path.read_bytes()[:-1])
    assert printed(path)[0].startswith("E-VER-FRAME a.tfrecord record 9 at byte 270: the ")
    content = write(tmp_path / "b.tfrecord", records).read_bytes()
    pack = gzip.compress if compression == "GZIP" else zlib.compress
    path.write_bytes(pack(content[:-1]))
    assert printed(path)[0].startswith("E-VER-FRAME a.tfrecord record 8 at byte ")
    if compression == "GZIP":  # a file may have several members
        path.write_bytes(pack(content[:50]) + pack(content[50:]))
        assert printed(path) == whole


def test_deep_decodes_pixels(tmp_path: Path) -> None:
    few_pixels = png(ihdr(8, 8), chunk(b"IDAT", zlib.compress(b"\0" * 10)))
    path = write(tmp_path / "a.tfrecord", [example(image=[few_pixels])])
    assert not printed(path)[0].startswith("E-VER-IMAGE")
    assert printed(path, deep=True)[0].startswith("E-VER-IMAGE a.tfrecord record 0 at byte")


def test_names_are_escaped(tmp_path: Path) -> None:
    """Only the first thousand features are listed."""
    record = example(**{"\x1b[2J": [1]}, **{f"x{n:05}": [n] for n in range(1000)})
    path = write(tmp_path / "a\u202e.tfrecord", [record])
    path.write_bytes(path.read_bytes() + b"\0")
    lines = printed(path)
    assert lines[-1] == "  more than 1000 features: the others are not listed"
    text = "\n".join(lines)
    assert text.isascii() and "\x1b" not in text
    assert "\\x1b[2J" in text and "a\\u202e.tfrecord" in text
