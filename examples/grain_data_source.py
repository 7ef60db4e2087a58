"""Read batches in Grain, and go on in the middle of an epoch after a crash, without TensorFlow.

    beam-tfrec coco --images train2017 --annotations instances_train2017.json --output out
    python examples/grain_data_source.py out

On TPUs, with JAX: `beam_tfrec.open(out, "train", host=jax.process_index(),
hosts=jax.process_count(),
drop_remainder=True)` gives each host its share, and `.batch(n, drop_remainder=True)` one shape.
"""

import argparse
import io
import json
from typing import Any

import grain
import numpy as np
from PIL import Image

import beam_tfrec

SIZE = (64, 64)  # width and height in px


def decode(record: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return what a model wants of a record: arrays of one shape, which Grain stacks."""
    with Image.open(io.BytesIO(record["image/encoded"])) as image:
        pixels = np.asarray(image.convert("RGB").resize(SIZE))
    return {"image": pixels, "objects": np.int32(len(record["image/object/class/label"]))}


def main() -> None:
    """Read some batches, stop, and read the others as if nothing had happened."""
    parser = argparse.ArgumentParser(description="Read batches in Grain.")
    parser.add_argument("out", help="what beam-tfrec coco wrote")
    parser.add_argument("--batch_size", type=int, default=8)
    arguments = parser.parse_args()

    # The order is of the seed alone; `.mp_prefetch(...)` would have worker processes decode.
    source = grain.MapDataset.source(beam_tfrec.open(arguments.out, "train"))
    dataset = source.shuffle(seed=0).map(decode).batch(arguments.batch_size).to_iter_dataset()
    whole = [batch["objects"].tolist() for batch in dataset]

    before = iter(dataset)
    first = next(before)
    read = [first["objects"].tolist()]
    checkpoint = json.dumps(before.get_state())  # goes beside the model's own

    after = iter(dataset)  # in another process, after the crash
    after.set_state(json.loads(checkpoint))
    read += [batch["objects"].tolist() for batch in after]
    print(f"images {first['image'].shape}, {len(read)} batches, {sum(map(sum, read))} objects")
    print(f"restored behind the first batch: {'same' if read == whole else 'other'} rest")


if __name__ == "__main__":
    main()
