"""The layout of the Keras recipe 'Creating TFRecords': one Example per annotation."""

import pytest

from pipelines.coco import CocoConfig
from schemas.example import encode_example, encode_example_parts
from schemas.fields import EncodedImage, ImageInfo, ObjectFields
from schemas.layouts import Unfit
from schemas.layouts.pictures import SizeMismatch
from schemas.layouts.tfds import KerasLayout
from schemas.manifest import Label
from schemas.samples import Blob, Sample
from schemas.tfrecord import frame_record
from tests.conftest import jpeg_bytes
from tests.small_pictures import LABELS, built, image_of, object_at, sample_of, values_of

CROWD = ObjectFields(90, (10.5, 20.25, 30.0, 20.0), 345.67, 1)


@pytest.mark.parametrize("policy", SizeMismatch)
def test_the_reader_checks_boxes_unless_the_image_s_size_is_trusted(policy: SizeMismatch) -> None:
    config = CocoConfig(
        {"train": "i"}, {"train": ["a"]}, output="o", layout=KerasLayout(on_size_mismatch=policy)
    )
    assert config.reading().rules.annotated_size is (policy is not SizeMismatch.TRUST_IMAGE)


def test_the_recipe_s_own_parsing_reads_it() -> None:
    """Its feature description and its steps, see the page that the layout names."""
    import tensorflow as tf

    description = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "path": tf.io.FixedLenFeature([], tf.string),
        "area": tf.io.FixedLenFeature([], tf.float32),
        "bbox": tf.io.VarLenFeature(tf.float32),
        "category_id": tf.io.FixedLenFeature([], tf.int64),
        "id": tf.io.FixedLenFeature([], tf.int64),
        "image_id": tf.io.FixedLenFeature([], tf.int64),
    }
    data = jpeg_bytes(100, 50)
    image = EncodedImage("dir/a.jpg", data, "", ImageInfo("jpeg", 100, 50))
    made = built(KerasLayout(), sample_of(100, 50, CROWD), image)
    example = tf.io.parse_single_example(encode_example(made.features), description)
    assert tf.io.decode_jpeg(example["image"], channels=3).shape == (50, 100, 3)
    bbox = tf.sparse.to_dense(example["bbox"])
    assert bbox.numpy().tolist() == [10.5, 20.25, 30.0, 20.0]
    assert example["area"].numpy() == pytest.approx(345.67)
    names = ("path", "category_id", "id", "image_id")
    assert [example[name].numpy() for name in names] == [b"dir/a.jpg", 90, 11, 42]


def test_an_annotation_outside_its_image_is_no_example() -> None:
    sample = sample_of(100, 50, object_at(100.0, 0.0, 5.0, 5.0))
    assert KerasLayout().build(sample, [image_of(100, 50)], LABELS) == Unfit(
        "E-EX-EMPTY", "x 100.0 to 105.0, y 0.0 to 5.0 in 100 x 50"
    )


def test_contiguous_ids() -> None:
    layout, labels = KerasLayout(), {90: Label(2, "cup", category_id=90)}
    made = built(layout, sample_of(100, 50, CROWD), image_of(100, 50), labels=labels)
    assert values_of(made)["category_id"] == made.labels == [2]


def test_features_that_it_does_not_have() -> None:
    message = "features of layout keras must be of boxes, got 'boxes,masks': leave out 'masks'"
    with pytest.raises(ValueError, match=f"^{message}$"):
        KerasLayout(features=("boxes", "masks"))


def test_the_estimated_size_is_nearly_the_record_s() -> None:
    blob = Blob("train", "000000000042.jpg", 150_000)
    fields = sample_of(640, 480, object_at(1.5, 2.5, 30.25, 40.0)).fields
    sample = Sample("train", "700001", 0, (blob,), fields, (700_001,))
    image = EncodedImage(blob.name, bytes(150_000), "ab" * 32, ImageInfo("jpeg", 640, 480))
    made = built(KerasLayout(), sample, image)
    real = sum(map(len, frame_record(encode_example_parts(made.features))))
    assert KerasLayout().record_bytes(sample) == pytest.approx(real, abs=12)
