"""Read batches with PyTorch in two worker processes, without TensorFlow.

    beam-tfrec coco --images train2017 --annotations instances_train2017.json --output out
    python examples/pytorch_data_loader.py out

On TPUs with PyTorch/XLA, give each process its share, and feed its device:

    share = {"host": xr.process_index(), "hosts": xr.process_count(), "drop_remainder": True}
    records = beam_tfrec.open(out, "train", **share)
    torch_xla.distributed.parallel_loader.MpDeviceLoader(loader, device)
"""

import argparse
import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

import beam_tfrec

SIZE = (64, 64)  # width and height in px
EDGES = [f"image/object/bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax")]


def collate(records: list[dict[str, Any]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return images [n, 3, 64, 64] in [0, 1], and for each its boxes [k, 4] in [0, 1]."""
    images = []
    for record in records:
        with Image.open(io.BytesIO(record["image/encoded"])) as image:
            images.append(np.asarray(image.convert("RGB").resize(SIZE)))
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255
    boxes = [np.stack([record[edge] for edge in EDGES], axis=1) for record in records]
    return pixels, [torch.from_numpy(of_image) for of_image in boxes]


def main() -> None:
    """Read an epoch, and count batches, pictures and boxes."""
    parser = argparse.ArgumentParser(description="Read batches in PyTorch.")
    parser.add_argument("out", help="output of beam-tfrec coco")
    parser.add_argument("--batch_size", type=int, default=8)
    arguments = parser.parse_args()
    torch.manual_seed(0)

    records = beam_tfrec.open(arguments.out, "train")  # has len() and [i], like PyTorch's Dataset
    print(f"{len(records)} records; the first has {', '.join(records[0])}")
    loader = DataLoader(
        records, arguments.batch_size, shuffle=True, num_workers=2, collate_fn=collate
    )
    pictures = objects = 0
    for images, boxes in loader:
        pictures += len(images)
        objects += sum(map(len, boxes))
    print(f"an epoch: {len(loader)} batches, {pictures} pictures, {objects} boxes")


if __name__ == "__main__":
    main()
