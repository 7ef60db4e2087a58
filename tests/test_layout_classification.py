"""Layouts of one image and its class, read back by TensorFlow."""

import hashlib
from typing import Any

import numpy as np
import pytest

from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Kind, parse_spec
from beam_tfrec.schemas.fields import RAW, ArrayFields, ClassFields, EncodedImage, ImageInfo
from beam_tfrec.schemas.layouts import Built, Layout, Unfit, classification, labels_by_category
from beam_tfrec.schemas.layouts.arrays import ArraysLayout, Encoding, found_in
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Blob, Sample, pack
from beam_tfrec.schemas.tensors import TENSOR_TYPES, encode_tensor, serialize_tensor
from tests.conftest import jpeg_bytes

tf = pytest.importorskip("tensorflow")

JPEG = jpeg_bytes(64, 48, color=5)
NAME = "n01440764/deep/n01440764_10026.JPEG"
TENCH = Label(1, "n01440764", text="tench, Tinca tinca")
RGB = ImageInfo("jpeg", 64, 48)

SHA256 = hashlib.sha256(JPEG).hexdigest()
BLOBS = (Blob("train", NAME, len(JPEG), "5"),)
SAMPLE = Sample("train", NAME, 0, BLOBS, pack(ClassFields("n01440764")))


def build(layout: Layout, info: ImageInfo) -> Built:
    image = EncodedImage(NAME, JPEG, SHA256, info)
    return layout.build(SAMPLE, [image], labels_by_category([TENCH]))


CLASSIFICATION = {
    "image/encoded": JPEG,
    "image/format": b"jpeg",
    "image/height": 48,
    "image/width": 64,
    "image/class/label": 1,
    "image/class/text": b"tench, Tinca tinca",
    "image/filename": NAME.encode(),
    "image/key/sha256": SHA256.encode(),
}
IMAGENET = {key: value for key, value in CLASSIFICATION.items() if key != "image/key/sha256"} | {
    "image/colorspace": b"RGB",
    "image/channels": 3,
    "image/class/synset": b"n01440764",
    "image/format": b"JPEG",
    "image/filename": b"n01440764_10026.JPEG",
}
TUTORIAL = {"height": 48, "width": 64, "label": 1, "image_raw": JPEG}
GRAY = ImageInfo("png", 64, 48, channels=1)


@pytest.mark.parametrize(
    ("layout", "info", "first", "expected"),
    [
        (classification.ClassificationLayout(), RGB, 0, CLASSIFICATION),
        (classification.ImagenetLayout(), RGB, 1, IMAGENET),
        (classification.TutorialLayout(), RGB, 0, TUTORIAL | {"depth": 3}),
        (classification.TutorialLayout(5), GRAY, 5, TUTORIAL | {"depth": 1}),
    ],
)
def test_layouts_that_store_files(
    layout: Layout, info: ImageInfo, first: int, expected: dict[str, Any]
) -> None:
    """Record sizes are known before images are read; class ids start at the first label."""
    built = build(layout, info)
    assert (built.dropped, built.repairs, built.labels) == ([], [], [1])
    record = encode_example(built.features)
    assert {*tf.train.Example.FromString(record).features.feature} == expected.keys()
    parsed = tf.io.parse_single_example(record, parse_spec(layout.spec))
    assert {key: value.numpy() for key, value in parsed.items()} == expected
    assert layout.first_label_id == first and layout.options()["first_label"] == str(first)
    assert abs(layout.record_bytes(SAMPLE) - len(record) - 16) <= 30


@pytest.mark.parametrize(
    ("info", "what"),
    [
        (ImageInfo("png", 64, 48), "a png of 3 channels"),
        (ImageInfo("jpeg", 64, 48, 1, ("gray",), 1), "a jpeg of 1 channels"),
        (ImageInfo("jpeg", 64, 48, 1, ("cmyk",), 3), "a jpeg of CMYK"),
    ],
)
def test_imagenet_takes_only_rgb_jpegs(info: ImageInfo, what: str) -> None:
    with pytest.raises(Unfit) as unfit:
        build(classification.ImagenetLayout(), info)
    assert unfit.value == Unfit("E-IMG-TYPE", f"{what}, the layout holds JPEGs of RGB")


def test_unknown_types_of_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of uint8, .*, got 'int8': give an"):
        classification.TensorLayout(dtype="int8")


# --- arrays as tensors ---


LABELS = labels_by_category([Label(0, "cat"), Label(1, "dog")])


def built(layout: ArraysLayout, fields: ArrayFields, data: bytes) -> dict:
    sample = Sample("train", "0", 0, (Blob("train", "x.npy", length=len(data)),), pack(fields))
    image = EncodedImage("x.npy", data, "00", RAW)
    made = layout.resolved(sorted(found_in(fields))).build(sample, [image], LABELS)
    return dict(made.features)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 4, 3), {"height": [2], "width": [4], "depth": [3]}),
        ((2, 4), {"height": [2], "width": [4], "depth": [1]}),
        ((), {"shape": []}),
        ((2, 1, 2, 2), {"shape": [2, 1, 2, 2]}),
    ],
)
def test_items_have_the_keys_of_the_tutorial(shape: tuple[int, ...], expected: dict) -> None:
    values = np.ones(shape, np.float32)
    features = built(ArraysLayout(), ArrayFields(shape, "float32", label=7), values.tobytes())
    assert features.pop("raw_image") == (Kind.BYTES, [encode_tensor(values)])
    assert features.pop("label") == (Kind.INT64, [7])
    assert {key: [*lengths] for key, (_, lengths) in features.items()} == expected
    assert "label" not in built(ArraysLayout(), ArrayFields(shape, "float32"), values.tobytes())


@pytest.mark.parametrize("dtype", TENSOR_TYPES)
@pytest.mark.parametrize("encoding", Encoding)
def test_big_endian_values_are_swapped(dtype: str, encoding: Encoding) -> None:
    values = np.arange(6).reshape(2, 3).astype("uint16" if dtype == "bfloat16" else dtype)
    swapped = values.astype(values.dtype.newbyteorder(">")).tobytes()
    features = built(ArraysLayout(encoding), ArrayFields((2, 3), dtype, True), swapped)
    expected = values.tobytes()
    if encoding is Encoding.TENSOR:
        expected = serialize_tensor((2, 3), dtype, expected)
    assert features["raw_image"] == (Kind.BYTES, [expected])


def test_other_arrays_become_features() -> None:
    fields = ArrayFields((1, 1), "uint8", features={"age": 7, "dose": 0.5, "site": "Ulm"})
    features = built(ArraysLayout(), fields, b"\1")
    assert features["age"] == (Kind.INT64, [7])
    assert features["dose"] == (Kind.FLOAT, [0.5])
    assert features["site"] == (Kind.BYTES, [b"Ulm"])


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (["dtype int8", "dtype uint8"], "dtype must be the same in all arrays, got int8 and uint8"),
        (["label bytes", "label int64"], "arrays of one name must hold text or numbers"),
        (["feature bytes a", "feature int64 a"], "arrays of one name must hold text or numbers"),
    ],
)
def test_refuses_arrays_that_differ(found: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArraysLayout().resolved(found)
