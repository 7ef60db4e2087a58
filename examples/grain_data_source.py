"""Read batches with Grain and resume in the middle of an epoch, without TensorFlow.

    beam-tfrec coco --images train2017 --annotations instances_train2017.json --output out
    python examples/grain_data_source.py out

On TPUs with JAX, give each host its share, and all batches one shape:

    share = {"host": jax.process_index(), "hosts": jax.process_count(), "drop_remainder": True}
    records = beam_tfrec.open(out, "train", **share)
    dataset = grain.MapDataset.source(records).map(decode).batch(n, drop_remainder=True)
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
    """Return arrays of one shape, which Grain can stack into a batch."""
    with Image.open(io.BytesIO(record["image/encoded"])) as image:
        pixels = np.asarray(image.convert("RGB").resize(SIZE))
    return {"image": pixels, "objects": np.int32(len(record["image/object/class/label"]))}


def main() -> None:
    """Read an epoch, then read it again with a stop and a restore after the first batch."""
    parser = argparse.ArgumentParser(description="Read batches in Grain.")
    parser.add_argument("out", help="output of beam-tfrec coco")
    parser.add_argument("--batch_size", type=int, default=8)
    arguments = parser.parse_args()

    # The order depends only on the seed. Add `.mp_prefetch(...)` to decode in worker processes.
    source = grain.MapDataset.source(beam_tfrec.open(arguments.out, "train"))
    dataset = source.shuffle(seed=0).map(decode).batch(arguments.batch_size).to_iter_dataset()
    whole = [batch["objects"].tolist() for batch in dataset]

    before = iter(dataset)
    first = next(before)
    read = [first["objects"].tolist()]
    checkpoint = json.dumps(before.get_state())  # save it with the model's checkpoint

    after = iter(dataset)  # in another process, after the crash
    after.set_state(json.loads(checkpoint))
    read += [batch["objects"].tolist() for batch in after]
    print(f"images {first['image'].shape}, {len(read)} batches, {sum(map(sum, read))} objects")
    print(f"restored after the first batch: {'same' if read == whole else 'other'} rest")


if __name__ == "__main__":
    main()
