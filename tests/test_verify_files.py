"""`verify` and `show` of files by TensorFlow's own writer, and `show` of data sets."""

import contextlib
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from beam_tfrec.pipelines.show import parser, show, show_bytes, tensor_png
from beam_tfrec.pipelines.verify import VerifyConfig, verify
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Feature, FeatureSpec, Kind
from beam_tfrec.schemas.tensors import Tensor, encode_tensor, read_tensor
from tests.conftest import jpeg_bytes
from tests.small_data_sets import write_data_set
from tests.small_images import chunk, ihdr, png
from tests.small_runs import build_run, plan_run, write_set

JPEG = jpeg_bytes(8, 6)
MEND = "write the record again from its image, or leave it out"


def example(**values: Sequence) -> bytes:
    """Return an Example of features whose kinds follow from the values."""
    kinds = {bytes: Kind.BYTES, float: Kind.FLOAT}
    first = {key: type(found[0]) if found else int for key, found in values.items()}
    return encode_example({k: (kinds.get(first[k], Kind.INT64), values[k]) for k in values})


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


# --- show ---


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("show")
    images, annotations = write_set(folder, 5, width=8, height=6)
    build_run(plan_run(images, annotations, folder / "out", num_shards=2))
    return folder / "out"


def shown(path: Path, **config: object) -> list[str]:
    flags = parser().parse_args([str(path), *(f"--{name}={of}" for name, of in config.items())])
    return [line.replace(f"{path.parent}/", "") for line in show(flags)]


def test_values_of_a_foreign_record(tmp_path: Path) -> None:
    record = example(
        image=[JPEG],
        broken=[JPEG[:-3]],
        tensor=[tf.io.serialize_tensor(tf.constant([[1.5, 2], [3, 4]])).numpy()],
        text=["caf\u00e9 \u202e".encode()],
        raw=[b"\x00\xff" * 20],
        long=[b"a" * 1000],
        numbers=list(range(20)),
        floats=[0.1, 1e30],
        none=[],
    )
    path = write(tmp_path / "a.tfrecord", [record])
    lines = shown(path)
    assert lines[0] == "features of the first 1 Example:"
    assert lines[10:] == [
        f"a.tfrecord record 0 at byte 0: {len(record)} bytes",
        f"  broken   bytes  damaged image of {len(JPEG) - 3} bytes: no end marker in"
        f" {len(JPEG) - 3} bytes",
        "  floats   float  0.1, 1e+30",
        f"  image    bytes  jpeg 8 x 6, {len(JPEG)} bytes",
        f"  long     bytes  '{'a' * 80}'... (1000 bytes)",
        "  none     int64  no values",
        "  numbers  int64  0, 1, 2, 3, 4, 5, 6, 7, ... (20 values)",
        "  raw      bytes  40 bytes: 00 ff 00 ff 00 ff 00 ff 00 ff 00 ff 00 ff 00 ff ...",
        "  tensor   bytes  tensor float32 [2, 2]: 1.5, 2, 3, 4",
        "  text     bytes  'caf\\xe9 \\u202e'",
    ]


SCORES = [[0.5], [1.0, 2.0], [3.0], [], [4.0]]
SCORED = encode_example({"id": (Kind.BYTES, [b"a"])}, {"score": (Kind.FLOAT, SCORES)})


@pytest.mark.parametrize(
    ("record", "lines"),
    [
        (b"hello, world\n", [": 13 bytes, not an Example", "  'hello, world\\n'"]),
        (b"\xff\x00", [": 2 bytes, not an Example", "  2 bytes: ff 00"]),
        (
            SCORED,
            [
                f": {len(SCORED)} bytes",
                "  id     bytes  'a'",
                "  score  float  5 steps: [0.5], [1, 2], [3], [no values], [4]",
            ],
        ),
    ],
)
def test_other_records(record: bytes, lines: list[str], tmp_path: Path) -> None:
    found = shown(write(tmp_path / "a.tfrecord", [record]))[-len(lines) :]
    assert found == [f"a.tfrecord record 0 at byte 0{lines[0]}", *lines[1:]]


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_one_record_of_a_file(compression: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", [example(x=[n]) for n in range(9)], compression)
    size = len(example(x=[1]))
    assert shown(path, record=7)[-2:] == [
        f"a.tfrecord record 7 at byte {7 * (16 + size)}: {size} bytes",
        "  x  int64  7",
    ]
    assert sum("record" in line for line in shown(path, limit=2)) == 2
    path.write_bytes(path.read_bytes()[:-1])
    if compression:
        assert "damaged, the compressed data is damaged from here on" in shown(path, limit=20)[-1]
    else:
        last = f" {8 * (16 + size)}: damaged, the file ends within a record of "
        assert last in shown(path, record=8)[-1]


def test_a_data_set_by_index(out: Path, tmp_path: Path) -> None:
    whole = shown(out, limit=9)
    assert whole[0] == "out: layout detection; train 5 records"
    places = [line for line in whole if line.startswith("out/train-")]
    assert len(places) == 5
    for number, place in enumerate(places):
        assert place in shown(out, record=number)
        key = place.partition("(key '")[2].partition("'")[0]
        one = shown(out, key=key, images=str(tmp_path))
        assert place in one and f"  image/source_id           bytes  '{key}'" in one
    assert sorted(os.listdir(tmp_path)) == [f"{n}-image_encoded.jpeg" for n in range(1, 6)]


def test_a_key_is_searched_in_all_splits(tmp_path: Path) -> None:
    record = encode_example({"n": (Kind.INT64, [7])})
    spec = FeatureSpec("one", (Feature("n", Kind.INT64, False, "a number"),))
    splits = {"train": [{"1": record}], "val": [{"2": record}, {"1": record, "3": record}]}
    write_data_set(tmp_path / "out", spec, splits)

    def found(**config: object) -> list[str]:
        lines = shown(tmp_path / "out", **config)
        return [line.partition(" at byte")[0] for line in lines if " at byte" in line]

    assert found(key="3") == ["out/val-00001-of-00002-2.tfrec record 1 (key '3')"]
    both = "out/train-00000-of-00001-1.tfrec record 0", "out/val-00001-of-00002-2.tfrec record 0"
    assert found(key="1") == [f"{place} (key '1')" for place in both]
    assert found(key="1", split="val") == [f"{both[1]} (key '1')"]
    with pytest.raises(RuntimeError, match="has no record '3' among the 1 of train; give"):
        found(key="3", split="train")


@pytest.mark.parametrize(
    ("path", "config", "said"),
    [
        ("set", {"key": "none"}, "has no record 'none' among the 5 of train; give another"),
        ("set", {"record": 5}, "has no record 5 among the 5 of train; give another"),
        ("set", {"split": "val"}, "split must be one of train, got 'val'"),
        ("a.tfrecord", {"record": 0}, "a.tfrecord: has no record 0; give another"),
        ("a.tfrecord", {"key": "1"}, "key and split must come with a data set, got '1'"),
        ("a.tfrecord", {"split": "train"}, "key and split must come with a data set, got 'train'"),
        ("none", {}, "none: no such file; give a finished data set or a file"),
        (".", {}, "has no manifest.json; give a finished data set or a file"),
        ("begun", {}, "begun: is not a finished data set: it has no manifest.json; run its com"),
    ],
)
def test_missing_records_and_files_are_named(
    path: str, config: dict[str, object], said: str, out: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.tfrecord").touch()
    (tmp_path / "set").symlink_to(out)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/_plan.json").touch()
    with pytest.raises((ValueError, RuntimeError), match=re.escape(said)):
        shown(tmp_path / path, **config)


def test_pictures_are_saved_and_nothing_is_overwritten(tmp_path: Path) -> None:
    pixels, pair = numpy.arange(24, dtype=numpy.uint8).reshape(2, 4, 3), "pair" * 100
    record = example(
        **{"../image": [JPEG], "pixels": [encode_tensor(pixels)], pair: [JPEG, JPEG], "x": [1]}
    )
    path, folder = write(tmp_path / "a.tfrecord", [record]), tmp_path / "saved/here"
    lines = shown(path, images=str(folder))
    names = [f"{pair[-238:]}-{place}.jpeg" for place in (0, 1)]
    names += ["record0-.._image.jpeg", "record0-pixels.png"]
    assert sorted(lines[-4:]) == [f"  saved saved/here/{name}" for name in names]
    assert sorted(os.listdir(folder)) == names
    assert (folder / names[2]).read_bytes() == JPEG
    with Image.open(folder / names[3]) as image:
        assert (numpy.asarray(image) == pixels).all()
    (folder / names[0]).write_bytes(b"mine")
    assert f"  saved/here/{names[0]} is there already: left as it is" in shown(
        path, images=str(folder)
    )
    assert (folder / names[0]).read_bytes() == b"mine"


@given(st.binary(max_size=40))
def test_any_bytes_are_shown_in_one_printable_line(data: bytes) -> None:
    read_tensor(data)
    text = show_bytes(data)
    assert text.isascii() and text.isprintable()


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 2), (2, 3, 3), (2, 3, 4)])
def test_pixels_become_png(dtype: str, shape: tuple[int, ...]) -> None:
    """TensorFlow reads the tensor's values: 16 bits of one channel, 8 bits of several."""
    values = (numpy.arange(numpy.prod(shape)) * 257 % 65536).astype(dtype).reshape(shape)
    png = tensor_png(Tensor(dtype, shape, values.tobytes()))
    if dtype == "uint16" and shape[2:] > (1,):
        values = (values >> 8).astype("uint8")
    read = tf.io.decode_png(png, dtype=tf.as_dtype(values.dtype))
    assert (read.numpy() == values.reshape(*shape[:2], -1)).all()


def test_other_tensors_do_not_become_png() -> None:
    for dtype, shape in (("float32", (2, 3)), ("uint8", (2,)), ("uint8", (2, 3, 5))):
        assert tensor_png(Tensor(dtype, shape, bytes(24))) is None
