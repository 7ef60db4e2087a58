"""TensorFlow Datasets: a GeneratorBasedBuilder without Beam, TFRecord files, 16 shards."""

import sys
from pathlib import Path

import job
import numpy as np
import tensorflow_datasets as tfds


class CocoPhotos(tfds.core.GeneratorBasedBuilder):
    """The features of TFDS's own `coco/2017`, from a local folder."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, *, images: Path, annotations: Path, **options):
        self.images = images
        self.rows, self.names = job.load_rows(annotations)
        super().__init__(**options)

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features
        objects = {
            "area": features.Scalar(np.int64),
            "bbox": features.BBoxFeature(),
            "id": features.Scalar(np.int64),
            "is_crowd": features.Scalar(np.bool_),
            "label": features.ClassLabel(names=list(self.names.values())),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=features.FeaturesDict(
                {
                    "image": features.Image(encoding_format="jpeg"),
                    "image/filename": features.Text(),
                    "image/id": features.Scalar(np.int64),
                    "objects": features.Sequence(objects),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        del dl_manager  # nothing is downloaded
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        labels = {category: label for label, category in enumerate(self.names)}
        for row in self.rows:
            columns = job.object_columns(row, self.names)
            corners = ("bbox/ymin", "bbox/xmin", "bbox/ymax", "bbox/xmax")
            boxes = zip(*(columns[corner] for corner in corners), strict=True)
            yield (
                row["id"],
                {
                    "image": str(self.images / row["file_name"]),
                    "image/filename": row["file_name"],
                    "image/id": row["id"],
                    "objects": [
                        {
                            "area": int(annotation["area"]),
                            "bbox": tfds.features.BBox(*box),
                            "id": annotation["id"],
                            "is_crowd": bool(annotation["iscrowd"]),
                            "label": labels[annotation["category_id"]],
                        }
                        for annotation, box in zip(row["objects"], boxes, strict=True)
                    ],
                },
            )


def main() -> int:
    """Build the data set with TFDS's own hash shuffle."""
    args = job.arguments().parse_args()
    builder = CocoPhotos(
        images=args.images, annotations=args.annotations, data_dir=args.out, file_format="tfrecord"
    )
    tfds.disable_progress_bar()
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(num_shards=job.SHARDS)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
