"""The annotation parser gives samples and rejects with right sums, or one `E-ANN-…` line."""

import functools
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
from pycocotools import mask as coco_mask

from beam_tfrec.schemas.annotations.coco_objects import parse_segmentation
from beam_tfrec.schemas.annotations.object_maps import BoxFormat, ObjectMap, parse_mapped
from beam_tfrec.schemas.annotations.voc_file import parse_voc
from beam_tfrec.schemas.annotations.yolo_file import parse_yolo
from beam_tfrec.schemas.documents.tensorflow_files import label_map_pbtxt
from beam_tfrec.schemas.faults import FAULTS, Rejected, Scope
from beam_tfrec.schemas.fields import PictureFields, Segmentation
from beam_tfrec.schemas.geometry.masks import mask_of
from beam_tfrec.schemas.labels import number_labels
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Sample, add_content_digests
from beam_tfrec.schemas.splits import HASH, Splitting
from beam_tfrec.transforms.sources.read_coco import CocoRules
from beam_tfrec.transforms.sources.read_samples import SplitTally
from beam_tfrec.transforms.sources.read_sidecar import read_objects
from tests.coco_texts import read_counted
from tests.conftest import coco_dict
from tests.fuzz.names import require_below_root
from tests.fuzz.target import Choices, Target, require_fault_line
from tests.side_folders import voc, voc_object

_RULES = (
    CocoRules(),
    CocoRules(string_ids=True, drop_orphans=True),
    CocoRules(
        drop_orphans=True,
        segmentations=True,
        licenses=(1, 2),
        skip_crowd=True,
        min_box_px=2,
        skip_unannotated=True,
    ),
    CocoRules(per_annotation=True, drop_orphans=True, segmentations=True, skip_crowd=True),
)
_SHARES = {"train": Fraction(2), "val": Fraction(1)}
_SPLITTINGS = (
    Splitting(HASH, _SHARES),
    Splitting(HASH, _SHARES, group_by="license"),
    Splitting("file_name", names=("0.jpg", "1.jpg", "2.jpg", "3.jpg")),
)
_YOLO: Sequence[dict[str, Any]] = (
    {"labels": [Label(0, "a"), Label(1, "b")]},
    {"labels": [Label(0, "a", keypoints=("0",))], "point_values": 3},
)
_MAPS = {str(at).encode(): ObjectMap("a.b", "x", "c", of) for at, of in enumerate(BoxFormat)}
_WIDTH_PX, _HEIGHT_PX = 40, 30
_FIELDS = msgspec.msgpack.Decoder(PictureFields).decode
_SEGMENTATIONS = msgspec.msgpack.Decoder(list[Segmentation]).decode

# Values to put in the place of a number, a name or a list.
_ODD: Sequence[Any] = (
    *(0, 1, 2, 3, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400),
    *(0.5, -0.0, 5e-324, 1e-46, 3.5e38, 1e308, math.nan, math.inf, True, None),
    *("1", "", "a.jpg", "../a.jpg", "/a", "gs://b/a", "a\0", "caf\u00e9\u202e\n", "E-ARG a: b; c"),
    [[0, 0, 4, 0, 4, 4]],
    *({"size": [48, 64], "counts": [3000, 72]}, {"size": [1, 1], "counts": "0"}),
    *([1, 2, 2], [{"id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}], 1.0, 1.5, 2.0**53),
    *([], {}, [1, 2, 3, 4], [0, 0, 1e308, 1e308], [-5, -5, 6, 6], [1, 2, 3], ["1", 2, 3, 4]),
)


def run_bytes(data: bytes) -> None:
    """Read bytes as an annotation file, with each set of rules."""
    for rules in _RULES:
        if _read([data], rules) is not None:
            assert not data.startswith(b"\x1f\x8b")


def run_joined(data: bytes) -> None:
    """Read files of chosen kinds; their order must not matter, nor how they are divided."""
    choices = Choices(data)
    rules = choices.one_of(_RULES)
    kinds = [choices.one_of(_KINDS) for _ in range(1 + choices.below(4))]
    files = [json.dumps(_build(choices, kind)).encode() for kind in kinds]
    one, other = _read(files, rules), _read(files[::-1], rules)
    assert (one is None) == (other is None)
    if one is not None and len(set(files)) == len(files):
        assert one == other
        # The length chooses, since kept inputs have no bytes left.
        _require_parts(files, rules, _SPLITTINGS[len(data) % len(_SPLITTINGS)])


def _require_parts(files: Sequence[bytes], rules: CocoRules, splitting: Splitting) -> None:
    """Require that splits, put together, hold and count what the undivided files do."""
    sources = [("a.json", data) for data in files]
    read = functools.partial(read_counted, sources, "train", rules, panoptic=_is_panoptic(files))
    try:
        parts = read(splitting=splitting)
    except RuntimeError as error:
        require_fault_line(error, ("E-ANN-", "E-SRC-SPLIT"))
        return
    assert _without_splits(parts) == _without_splits(read())


def _without_splits(items: Sequence[Sample | Rejected | SplitTally]) -> tuple[list, Counter[str]]:
    """Return samples and rejects as of one split, and the sums of all splits' counts."""
    totals: Counter[str] = Counter()
    for file in (item for item in items if isinstance(item, SplitTally)):
        totals.update(images=file.images or 0, listed=file.listed, annotations=file.annotations)
        totals.update(repeated=file.repeated_annotation_ids, without=file.images_without_samples)
        for group in ("repairs", "skipped", "skipped_annotations"):
            totals.update({f"{group} {name}": n for name, n in getattr(file, group).items()})
    others = [item for item in items if not isinstance(item, SplitTally)]
    return [msgspec.structs.replace(item, split="") for item in others], +totals


def _read(files: Sequence[bytes], rules: CocoRules) -> list[Sample | Rejected | SplitTally] | None:
    """Return the contents of the files, or None if one line refuses them."""
    sources = [("a.json", data) for data in files]
    excluded, panoptic = {"train": {"2": ""}}, _is_panoptic(files)
    try:
        items = read_counted(sources, "train", rules, excluded, panoptic=panoptic)
    except RuntimeError as error:
        require_fault_line(error, ("E-ANN-", "E-ARG"))
        return None
    _require_valid(items)
    return items


def _is_panoptic(files: Sequence[bytes]) -> bool:
    return any(b"segments_info" in data for data in files)


def _require_valid(items: Sequence[Sample | Rejected | SplitTally]) -> None:
    *others, file = items
    assert isinstance(file, SplitTally)
    samples = [item for item in others if isinstance(item, Sample)]
    rejects = [item for item in others if isinstance(item, Rejected)]
    if file.images is None:
        assert len({sample.key for sample in samples}) == len(samples)
    for sample in samples:
        _require_sample(sample)
    for reject in rejects:
        assert FAULTS[reject.code].scope is Scope.ANNOTATION
        assert msgspec.json.decode(msgspec.json.encode(reject), type=Rejected) == reject
    _require_label_map(file.labels)


def _require_sample(sample: Sample) -> None:
    for blob in sample.blobs:
        require_below_root(blob.name)
    fields = _FIELDS(sample.fields)
    assert len(sample.blobs) == 1 + (fields.segments is not None)
    objects, captions = len(fields.objects), len(fields.captions)
    ids = sample.annotation_ids
    assert len(ids) == objects + captions + (fields.segments is not None)
    for part in (ids[:objects], ids[objects : objects + captions]):
        assert list(part) == sorted(part, key=lambda i: (isinstance(i, str), i))
    assert 0 <= add_content_digests([sample], with_position=True) < 2**256
    if sample.payload:
        assert len(_SEGMENTATIONS(sample.payload)) == objects
    for segment in fields.segments or ():
        assert all(map(math.isfinite, segment.bbox_xywh_px)) and 0 <= segment.id < 2**24
    for found in fields.objects:
        assert len(found.keypoints_px) % 3 == 0 and all(map(math.isfinite, found.keypoints_px))
        assert all(map(math.isfinite, found.bbox_xywh_px)) and found.is_crowd in (0, 1)
        assert found.bbox_xywh_px[2] > 0 and found.bbox_xywh_px[3] > 0


def _require_label_map(labels: Sequence[Label]) -> None:
    text = label_map_pbtxt(number_labels([], set(labels), 1))
    assert text.count("\nitem {\n") + text.startswith("item {\n") == len(set(labels))


_KINDS = ("instances", "keypoints", "captions", "panoptic")


def _examples(kind: str) -> dict[str, dict[str, Any]]:
    """Return one entry for each section of a kind of file, with all keys that are read."""
    coco = coco_dict(1, objects=1)
    image = {**coco["images"][0], "license": 1, "coco_url": "http://a/b/c.jpg"}
    image |= {"neg_category_ids": [1], "not_exhaustive_category_ids": []}
    annotation = coco["annotations"][0]
    category = {**coco["categories"][0], "keypoints": ["nose"]}
    if kind == "keypoints":
        annotation = {**annotation, "keypoints": [1, 2, 2]}
    elif kind == "captions":
        annotation = {"id": 1, "image_id": 1, "caption": "A cat."}
    elif kind == "panoptic":
        segment = {"id": 7, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 9, "iscrowd": 0}
        annotation = {"image_id": 1, "file_name": "a.png", "segments_info": [segment]}
    return {"images": image, "annotations": annotation, "categories": category}


def _build(choices: Choices, kind: str) -> dict[str, Any]:
    def entry(example: dict[str, Any]) -> dict[str, Any]:
        """Return an entry like the example, with up to three values or keys changed."""
        built = {**example, "id": choices.below(4)}
        if "file_name" in example:
            built["file_name"] = f"{built['id']}.jpg"
        for _ in range(choices.below(4)):
            key = choices.one_of([*example])
            if choices.below(8):
                built[key] = choices.one_of(_ODD)
            else:
                built.pop(key, None)
        return built

    built = {
        name: [entry(example) for _ in range(choices.below(4))]
        for name, example in _examples(kind).items()
    }
    for annotation in built["annotations"]:
        annotation["image_id"] = annotation.get("image_id", 1) if choices.below(2) else 0
        if kind == "panoptic" and choices.below(4):
            annotation["image_id"] = annotation["id"]
        if kind == "panoptic" and choices.below(2):
            (segment,) = _examples(kind)["annotations"]["segments_info"]
            annotation["segments_info"] = [entry(segment) for _ in range(choices.below(3))]
    return built


def run_segmentations(data: bytes) -> None:
    """Parse bytes as a segmentation; draw it, and compare run lengths with pycocotools'."""
    found = parse_segmentation(data, _WIDTH_PX, _HEIGHT_PX, Counter())
    if not isinstance(found, Segmentation):
        assert FAULTS[found[0]].scope is Scope.ANNOTATION
        return
    mask = mask_of(found, _WIDTH_PX, _HEIGHT_PX)
    assert mask.shape == (_HEIGHT_PX, _WIDTH_PX) and mask.max() <= 1
    assert all(math.isfinite(value) for polygon in found.polygons_px for value in polygon)
    if found.rle_counts:
        rle = {"size": [_HEIGHT_PX, _WIDTH_PX], "counts": found.rle_counts}
        theirs = coco_mask.decode(coco_mask.frPyObjects(rle, _HEIGHT_PX, _WIDTH_PX))
        assert np.array_equal(mask, theirs)
    else:
        assert bool(found) == bool(found.polygons_px)


def run_side_texts(data: bytes) -> None:
    """A VOC file, mapped JSON or a YOLO label file is a fault or objects with finite boxes."""
    format, text = data[:1], data[1:]
    if format == b"<":
        parse = parse_voc
    elif format in _MAPS:
        parse = functools.partial(parse_mapped, objects=_MAPS[format])
    else:
        parse = functools.partial(parse_yolo, **_YOLO[format == b"k"])
    read = read_objects(text, parse, segmentations=True)
    if isinstance(read, tuple):
        code, detail = read
        assert code == "E-ANN-FILE" and detail and detail.isprintable(), read
        return
    fields = _FIELDS(read.fields)
    assert len(fields.objects) == len(_SEGMENTATIONS(read.payload))
    assert len({*read.annotation_ids}) == len(fields.objects)
    for found in fields.objects:
        assert all(map(math.isfinite, found.bbox_xywh_px)) and found.area_px2 >= 0, found
        assert min(found.bbox_xywh_px[2:]) > 0, found
    assert all(FAULTS[bad.code].scope is Scope.ANNOTATION for bad in read.bad), read.bad


def _side_seeds() -> Iterable[bytes]:
    odd = voc_object("", (1, 2, "nan", 4), "<part/><difficult>x</difficult>")
    yield b"<" + voc(voc_object(), odd)
    yield b"y0 .5 .5 .25 .5\n1 0 0 1 0 1 1\n0 .5 .5 0 1e999\n7 .5 .5 .2 .2"
    yield b"k0 .5 .5 .25 .5 .5 .5 2\n0 .5 .5 .25 .5 .5 .5 7"
    for format in _MAPS:
        yield format + b'{"width": 9, "height": 9, "a": {"b": [{"x": [1, 2, 3, 4], "c": 7}]}}'
        yield format + b'{"a": {"b": {"x": [[0, 0.5, 1, 1e308], [1]], "c": ["d", {}]}}}'


TARGETS = (
    Target("side_texts", run_side_texts, max_bytes=512, seeds=_side_seeds),
    Target("segmentations", run_segmentations, "json.dict", 256),
    Target("annotations", run_bytes, "json.dict", 1024),
    Target("annotations_joined", run_joined, max_bytes=384),
)
