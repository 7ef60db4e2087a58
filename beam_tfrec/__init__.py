"""Images and their annotations to sharded TFRecord files, and readers of these.

    import beam_tfrec

    dataset = beam_tfrec.load("gs://bucket/coco-tfrec", "train", batch_size=64)  # tf.data
    records = beam_tfrec.open("gs://bucket/coco-tfrec", "train")  # records[42], without TensorFlow

The four packages are links to the project's folders, so that a checkout and a wheel have the same
names. Import them by these alone: `schemas` instead of `beam_tfrec.schemas` is a second copy.
Importing this package loads none of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beam_tfrec.readers import load, open, steps_per_epoch

__all__ = ["__version__", "load", "open", "steps_per_epoch"]

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Return a function of `beam_tfrec.readers`, imported by its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("beam_tfrec.readers"), name)
