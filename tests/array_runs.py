"""Small array files, and runs of `beam_tfrec.pipelines.arrays` over them."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from beam_tfrec.pipelines import arrays
from tests.coco_command import Run, run_pipeline


def run_arrays(*arguments: object) -> Run:
    return run_pipeline(arrays.run, *arguments)


def npy_bytes(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def random_images(items: int, side: int = 8, seed: int = 0) -> np.ndarray:
    """Return random uint8 pictures of three channels."""
    return np.random.default_rng(seed).integers(0, 256, (items, side, side, 3), dtype=np.uint8)


def parsed(out: Path, dtype: Any, split: str = "train", **features: Any) -> list[dict[str, Any]]:
    """Return the records, parsed as in the tutorial, in the order of files and records."""
    import tensorflow as tf

    description = {
        "height": tf.io.FixedLenFeature([], tf.int64),
        "width": tf.io.FixedLenFeature([], tf.int64),
        "depth": tf.io.FixedLenFeature([], tf.int64),
        "raw_image": tf.io.FixedLenFeature([], tf.string),
        **features,
    }
    files = sorted(str(path) for path in out.glob(f"{split}-*.tfrec"))

    def parse(record: Any) -> Any:
        content = tf.io.parse_single_example(record, description)
        content["image"] = tf.io.parse_tensor(content.pop("raw_image"), out_type=dtype)
        return content

    return list(tf.data.TFRecordDataset(files).map(parse).as_numpy_iterator())
