"""`beam_tfrec.open`: a split as a sequence, with the values that TensorFlow parses."""

import multiprocessing
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_tfrec
from beam_tfrec.readers.records import draw_picture, record_parser
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind, parse_spec
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.transforms.report import class_color
from tests.small_data_sets import write_data_set
from tests.small_runs import build_run, plan_run, write_set

SPEC = FeatureSpec(
    "small",
    (
        Feature("image/encoded", Kind.BYTES, False, "a file"),
        Feature("id", Kind.INT64, False, "a number"),
        Feature("weight", Kind.FLOAT, False, "kg", optional=True),
        Feature("name", Kind.BYTES, False, "of it", optional=True),
        Feature("age", Kind.INT64, False, "in years", optional=True),
        Feature("boxes", Kind.FLOAT, True, "edges"),
        Feature("labels", Kind.INT64, True, "ids"),
        Feature("texts", Kind.BYTES, True, "words"),
    ),
)
LABELS = [Label(1, "cat"), Label(2, "dog")]
COUNTS = [5, 4, 1]


def example(number: int, size_bytes: int = 50) -> bytes:
    return encode_example(
        {
            "image/encoded": (Kind.BYTES, [bytes([number % 256]) * size_bytes]),
            "id": (Kind.INT64, [number]),
            **({"weight": (Kind.FLOAT, [number / 3])} if number % 2 else {}),
            "boxes": (Kind.FLOAT, [0.1] * (number % 3)),
            "labels": (Kind.INT64, list(range(number % 3))),
            "texts": (Kind.BYTES, [b"x"] * (number % 3)),
        }
    )


def make_shards(counts: Sequence[int], size_bytes: int = 50) -> list[dict[str, bytes]]:
    shards, first = [], 0
    for count in counts:
        shards.append({f"k{n}": example(n, size_bytes) for n in range(first, first + count)})
        first += count
    return shards


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ten") / "out"
    return write_data_set(folder, SPEC, {"train": make_shards(COUNTS)}, LABELS)


def ids(records: Any) -> list[int]:
    return [int(record["id"]) for record in records]


def plain(value: Any) -> Any:
    """Return a value with its type and the bits of its numbers, for comparison."""
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tobytes()
    return value


def test_a_split_is_a_sequence(output: Path) -> None:
    records = beam_tfrec.open(str(output), "train")
    assert len(records) == 10
    assert ids(records) == list(range(10))
    assert [int(records[i]["id"]) for i in range(-10, 10)] == [*range(10), *range(10)]
    assert int(records[np.int64(3)]["id"]) == 3
    assert records.labels == tuple(LABELS)
    assert records.spec.features == SPEC.features
    assert records.split == "train"
    assert ids(reversed(records)) == list(range(10))[::-1]
    assert ids(records.__getitems__([-1, 3, 0, 3, 4])) == [9, 3, 0, 3, 4]


@pytest.mark.parametrize("index", [10, -11, 2**70])
def test_an_index_out_of_range_is_an_index_error(output: Path, index: int) -> None:
    records = beam_tfrec.open(str(output), "train")
    for ask in (lambda: records[index], lambda: records.__getitems__([0, index])):
        with pytest.raises(IndexError, match=f"^index must be -10 to 9, got {index}: there are 10"):
            ask()


@pytest.mark.parametrize("part", [slice(2, 7), slice(None, None, -1), slice(1, 9, 3)], ids=str)
def test_a_slice_is_a_sequence_too(output: Path, part: slice) -> None:
    view = beam_tfrec.open(str(output), "train")[part]
    expected = list(range(10))[part]
    assert (len(view), ids(view)) == (len(expected), expected)
    assert ids(view.__getitems__(range(len(view)))) == expected
    assert ids(view[::-1][1:]) == expected[::-1][1:]
    assert [view.find(f"k{n}") for n in expected] == list(range(len(expected)))


def test_keys_are_found(output: Path) -> None:
    records = beam_tfrec.open(str(output), "train")
    assert [records.key(i) for i in (0, 4, 5, -1)] == ["k0", "k4", "k5", "k9"]
    assert [records.find(f"k{n}") for n in (0, 4, 5, 9)] == [0, 4, 5, 9]
    with pytest.raises(KeyError, match=r"none of 10 records of train has 'k10': see key\(0\)"):
        records.find("k10")
    with pytest.raises(KeyError):
        records[:4].find("k4")
    with pytest.raises(TypeError, match=r"^key must be text, got 42: give '42'$"):
        records.find(42)  # type: ignore[arg-type]  # an image's id is a number in COCO's file


@pytest.mark.parametrize("hosts", [3, 12])
def test_hosts_share_a_split(output: Path, hosts: int) -> None:
    for dropping in (True, False):
        shares = [
            beam_tfrec.open(str(output), "train", host=h, hosts=hosts, drop_remainder=dropping)
            for h in range(hosts)
        ]
        read = sorted(n for share in shares for n in ids(share))
        assert len(read) == (10 // hosts * hosts if dropping else 10) == len(set(read))
        assert max(map(len, shares)) - min(map(len, shares)) <= (not dropping)
    for share in shares:
        assert ids(share.__getitems__(range(len(share)))) == ids(share)
        assert [share.find(share.key(i)) for i in range(len(share))] == list(range(len(share)))


def test_several_data_sets_are_one(output: Path, tmp_path: Path) -> None:
    other = write_data_set(tmp_path / "2", SPEC, {"train": [{"k10": example(10)}]}, LABELS)
    records = beam_tfrec.open([str(output), str(other)], "train")
    assert ids(records) == list(range(11))
    assert ids(records.__getitems__([10, 0])) == [10, 0]


def test_records_share_no_arrays(output: Path) -> None:
    records = beam_tfrec.open(str(output), "train")
    one, same = records.__getitems__([2, 2])
    one["boxes"][0] = 9
    assert same["boxes"][0] == records[2]["boxes"][0] == np.float32(0.1)


WHOLE = {"image/encoded": (Kind.BYTES, [b""]), "id": (Kind.INT64, [7])}
WRONG = {
    "missing value": ({"id": (Kind.INT64, [7])}, "image/encoded has 0 values"),
    "empty list": ({**WHOLE, "id": (Kind.INT64, [])}, "id has 0 values, not one"),
    "empty list, optional": ({**WHOLE, "age": (Kind.INT64, [])}, "age has 0 values"),
    "two values": ({**WHOLE, "id": (Kind.INT64, [1, 2])}, "id has 2 values, not one"),
    "another kind": ({**WHOLE, "id": (Kind.FLOAT, [1])}, "id is of kind float, not int64"),
    "another kind, empty": ({**WHOLE, "boxes": (Kind.INT64, [])}, "boxes is of kind int64, not f"),
}


@pytest.mark.parametrize(("features", "error"), WRONG.values(), ids=WRONG)
def test_records_that_tensorflow_refuses_are_refused(features: Mapping, error: str) -> None:
    import tensorflow as tf

    data = encode_example(features)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.parse_single_example(data, parse_spec(SPEC))
    with pytest.raises(ValueError, match="^" + re.escape(error)):
        record_parser(SPEC)(data)


def test_a_damaged_record_is_named_with_its_place(tmp_path: Path) -> None:
    records = {"a": example(0), "b": b"\x0a\x05", "c": encode_example({})}
    output = write_data_set(tmp_path / "out", SPEC, {"train": [records]})
    opened = beam_tfrec.open(str(output), "train")
    at = len(example(0)) + 16
    with pytest.raises(RuntimeError) as caught:
        opened[1]
    assert str(caught.value).startswith(
        f"E-VER-EXAMPLE {output}/train-00000-of-00001-3.tfrec record 1 (key 'b') at byte {at}:"
        " protobuf cannot parse its 2 bytes; "
    )
    with pytest.raises(
        RuntimeError, match=r"record 2 \(key 'c'\) at byte .*: image/encoded has 0 v"
    ):
        opened[2]
    assert int(opened[0]["id"]) == 0


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    images, annotations = write_set(tmp_path, 12)
    output = tmp_path / "out"
    build_run(plan_run(images, annotations, output, num_shards=3))
    records = beam_tfrec.open(str(output), "train")
    import tensorflow as tf

    files = sorted(str(path) for path in output.glob("*.tfrec"))
    raw = list(tf.data.TFRecordDataset(files).as_numpy_iterator())
    assert len(records) == len(raw) == 12
    for data, record in zip(raw, records, strict=True):  # types and bits are those of TensorFlow
        assert list(record) == [feature.key for feature in records.spec.features]
        for key, tensor in tf.io.parse_single_example(data, parse_spec(records.spec)).items():
            is_sparse = isinstance(tensor, tf.sparse.SparseTensor)
            value = (tensor.values if is_sparse else tensor).numpy()
            is_list = isinstance(value, np.ndarray) and value.dtype == object
            assert plain(record[key]) == plain(value.tolist() if is_list else value), key
    sources = {record["image/filename"].decode(): record["image/encoded"] for record in records}
    assert sources == {path.name: path.read_bytes() for path in images.iterdir()}

    # A record is shown with its boxes, in the colors of the report.
    shown, label = records.show(0), int(records[0]["image/object/class/label"][0])
    color = bytes.fromhex(class_color(label)[1:])
    rows, columns = np.nonzero((np.asarray(shown) == list(color)).all(-1))
    xmin, ymin, xmax = (
        records[0][f"image/object/bbox/{edge}"][0] * side
        for edge, side in (("xmin", shown.width), ("ymin", shown.height), ("xmax", shown.width))
    )  # the name is drawn at the lower edge, and below it
    found = columns.min(), rows.min(), columns.max()
    assert np.allclose(found, (xmin, ymin, xmax), atol=2)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("x", b"", "none of layout 't'"),
        ("image/encoded", b"\xff\xd8", "image/encoded is not shown"),
    ],
)
def test_a_record_without_a_picture_is_not_shown(key: str, value: bytes, what: str) -> None:
    spec = FeatureSpec("t", (Feature(key, Kind.BYTES, False, "x", content=Content.IMAGE),))
    data = encode_example({key: (Kind.BYTES, [value])})
    with pytest.raises(ValueError, match=f"^record must have an image to show, got {what}"):
        draw_picture(data, spec, [])


def read_in_child(records: Any) -> list[int]:
    return [*ids(records), *ids(records.__getitems__([9, 0]))]


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes_can_read(output: Path, method: str) -> None:
    records = beam_tfrec.open(str(output), "train")
    expected = read_in_child(records)
    context: Any = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map(read_in_child, [records, records[:]]) == [expected] * 2
