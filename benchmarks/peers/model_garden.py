"""Model Garden's `create_coco_tf_record.py --include_masks`, on all cores by default.

The script is run as it is installed. Only the imports of its packages are left out, which load all
of Model Garden: that would be seconds more of its time.
"""

import importlib
import importlib.metadata
import sys
import types
from pathlib import Path
from typing import Any

import job
from absl import flags


def import_alone(name: str) -> Any:
    """Import a module of Model Garden without its packages' own imports."""
    distribution = importlib.metadata.distribution("tf-models-official")
    folder = Path(str(distribution.locate_file("")))
    *packages, _ = name.split(".")
    for depth in range(1, len(packages) + 1):
        module = types.ModuleType(".".join(packages[:depth]))
        module.__path__ = [str(folder.joinpath(*packages[:depth]))]
        sys.modules.setdefault(module.__name__, module)
    return importlib.import_module(name)


def main() -> int:
    """Write Examples with masks into as many shards as all contenders."""
    args = job.arguments().parse_args()
    script = import_alone("official.vision.data.create_coco_tf_record")
    flags.FLAGS(
        [
            "create_coco_tf_record.py",
            "--include_masks",
            f"--image_dir={args.images}",
            f"--object_annotations_file={args.annotations}",
            f"--output_file_prefix={args.out / 'train'}",
            f"--num_shards={job.SHARDS}",
        ]
    )
    script.main(None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
