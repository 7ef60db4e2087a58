"""Write images with their annotations to sharded TFRecord files, and read them.

    import beam_tfrec

    dataset = beam_tfrec.load("gs://bucket/coco-tfrec", "train", batch_size=64)  # tf.data
    records = beam_tfrec.open("gs://bucket/coco-tfrec", "train")  # records[42], without TensorFlow

In a checkout, the four subpackages are links to the project's top-level folders. Import them with
the prefix: `import schemas` would load a second copy of `beam_tfrec.schemas`. The subpackages are
imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beam_tfrec.readers import (
        find_damaged_images,
        folds,
        load,
        open,
        repeat_factors,
        steps_per_epoch,
    )

__all__ = [
    "__version__",
    "find_damaged_images",
    "folds",
    "load",
    "open",
    "repeat_factors",
    "steps_per_epoch",
]

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Import `beam_tfrec.readers` on first use and return one of its functions."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("beam_tfrec.readers"), name)
