"""The detection Example as TensorFlow recipes build it, for the loop and for naive Beam."""

import hashlib
from pathlib import Path

import job
import tensorflow as tf


def bytes_feature(values: list[bytes]) -> tf.train.Feature:
    """Wrap byte strings."""
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def int64_feature(values: list[int]) -> tf.train.Feature:
    """Wrap integers."""
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def float_feature(values: list[float]) -> tf.train.Feature:
    """Wrap floats."""
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def build_example(row: dict, names: dict[int, str], images: Path) -> tf.train.Example:
    """Read a photo and return its Example; the photo's bytes are passed through."""
    encoded = (images / row["file_name"]).read_bytes()
    columns = job.object_columns(row, names)
    wrap = {"class/text": bytes_feature, "class/label": int64_feature, "is_crowd": int64_feature}
    fields = {
        "image/encoded": bytes_feature([encoded]),
        "image/filename": bytes_feature([row["file_name"].encode()]),
        "image/format": bytes_feature([b"jpeg"]),
        "image/height": int64_feature([row["height"]]),
        "image/key/sha256": bytes_feature([hashlib.sha256(encoded).hexdigest().encode()]),
        "image/source_id": bytes_feature([str(row["id"]).encode()]),
        "image/width": int64_feature([row["width"]]),
    }
    for name, column in columns.items():
        fields[f"image/object/{name}"] = wrap.get(name, float_feature)(column)
    return tf.train.Example(features=tf.train.Features(feature=fields))
