"""Small COCO files as text, and functions that read them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from beam_tfrec.schemas.annotations.coco_file import CocoFile
from beam_tfrec.schemas.annotations.coco_join import AnnotatedImage, CocoFiles
from beam_tfrec.schemas.faults import Rejected, find_fault
from beam_tfrec.schemas.fields import ObjectFields, Segmentation
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.sources.read_coco import CocoReader, CocoRules
from beam_tfrec.transforms.sources.read_samples import SplitCounter, SplitTally

SMALL = (
    b'{"images":[{"id":1,"file_name":"a.jpg","width":64,"height":48}],'
    b'"annotations":[{"id":5,"image_id":1,"category_id":3,"bbox":[1,2,3,4],"area":9.5}],'
    b'"categories":[{"id":3,"name":"cat"}]}'
)
SMALL_OBJECT = (5, ObjectFields(3, (1.0, 2.0, 3.0, 4.0), 9.5, 0), Segmentation())
CAPTION = {"id": 7, "image_id": 1, "caption": "A cat."}
SEGMENT = {"id": 9, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 6, "iscrowd": 0}
PANOPTIC = {"image_id": 1, "file_name": "a.png", "segments_info": [SEGMENT]}


def small(old: bytes, new: bytes) -> bytes:
    """Return the small file with one edit."""
    assert SMALL.count(old) == 1
    return SMALL.replace(old, new)


def coco(images: list, annotations: list, categories: list | None = None) -> bytes:
    labels = [{"id": 3, "name": "cat", "isthing": 1}] if categories is None else categories
    return json.dumps({"images": images, "annotations": annotations, "categories": labels}).encode()


def image(image_id: Any = 1, file_name: Any = "a.jpg", **fields: Any) -> dict:
    return {"id": image_id, "file_name": file_name, "width": 64, "height": 48, **fields}


def annotation(annotation_id: Any = 5, **fields: Any) -> dict:
    usual = {"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 9.5}
    return {"id": annotation_id, **usual, **fields}


def parse(data: bytes, **options: Any) -> CocoFile:
    return CocoFile(data, "f.json", **options)


def join(*files: bytes, **options: Any) -> CocoFiles:
    """Return files joined as `f0.json`, `f1.json` and so on."""
    return CocoFiles([CocoFile(data, f"f{n}.json", **options) for n, data in enumerate(files)])


def annotated(*files: bytes, **options: Any) -> list[AnnotatedImage]:
    """Return the images of joined files with their annotations."""
    return list(join(*files, **options).annotated_images())


def read(data: bytes, **options: Any) -> list[tuple]:
    """Return (image id, objects, bad annotations) of every image."""
    file = CocoFiles([parse(data, **options)])
    return [(found.image.id, found.objects, found.bad) for found in file.annotated_images()]


def read_counted(
    sources: Sequence[tuple[str, bytes]],
    split: str,
    rules: CocoRules,
    exclude: Mapping[str, Mapping[str, str]] | None = None,
    *,
    panoptic: bool = False,
    splitting: Splitting | None = None,
) -> list[Sample | Rejected | SplitTally]:
    """Return samples and rejects of a split's files, then a summary a split; check all sums."""
    counter = SplitCounter(exclude or {})
    roots = frozenset([split] if panoptic else [])
    reader = CocoReader(rules, panoptic_splits=roots, splitting=splitting or Splitting())
    items = list(counter.admit(reader.read(split, sources)))
    files = counter.split_tallies()
    for file in files:
        _require_sums(file, [item for item in items if item.split == file.split])
    return [*items, *files]


def _require_sums(file: SplitTally, items: Sequence[Sample | Rejected]) -> None:
    """Check that each listed item is a sample, a reject, or left out."""
    samples = [item for item in items if isinstance(item, Sample)]
    assert file.listed == len(samples) + file.excluded_samples + sum(file.skipped.values())
    kept = sum(len(sample.annotation_ids) for sample in samples)
    left_out = file.excluded_annotations + sum(file.skipped_annotations.values())
    assert file.annotations == kept + len(items) - len(samples) + left_out


def refused(data: bytes, line: str, **options: Any) -> None:
    with pytest.raises(RuntimeError, match=f"^{re.escape(line)}$") as caught:
        read(data, **options)
    assert find_fault(str(caught.value)) == (line.split()[0], line)
