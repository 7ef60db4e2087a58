"""Samples of COCO annotation files.

The files of a split are read as a whole and joined. Their images belong to that split, or are
divided into splits. Annotations follow their image, so no photo is in two splits.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import google_crc32c

from beam_tfrec.schemas.annotations.coco_file import CocoFile, CocoImage
from beam_tfrec.schemas.annotations.coco_join import AnnotatedImage, CocoFiles, license_of
from beam_tfrec.schemas.faults import FAULTS, Reason, Rejected, run_fault
from beam_tfrec.schemas.fields import BadAnnotation, ObjectFields, PictureFields
from beam_tfrec.schemas.geometry.boxes import PlacedBox, place_box
from beam_tfrec.schemas.samples import Blob, Sample, pack, panoptic_root
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.sources.read_samples import Item, SplitTally
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, read_uri

_ORPHANS_REMEDY = "correct the file, or give --orphans drop"


@dataclass(frozen=True)
class CocoRules:
    """Strictness and filters for COCO files.

    Attributes:
        string_ids: accept ids that are strings.
        drop_orphans: drop annotations of unknown images or categories, instead of stopping.
        segmentations: read segmentations into the samples' payload.
        per_annotation: make a sample of every object, not of every image.
        licenses: ids of the licenses that images may have; empty for any or none.
        skip_crowd: leave out objects that are crowds.
        min_box_px: leave out objects if a side of their annotated box is shorter.
        skip_unannotated: leave out images without a remaining object. If no file has objects,
            leave out images without any annotation.
        annotated_size: whether boxes lie in images of the size in the files. Otherwise only the
            image shows the size, so no box counts as outside yet.
    """

    string_ids: bool = False
    drop_orphans: bool = False
    segmentations: bool = False
    per_annotation: bool = False
    licenses: tuple[int, ...] = ()
    skip_crowd: bool = False
    min_box_px: float = 0.0
    skip_unannotated: bool = False
    annotated_size: bool = True

    def __post_init__(self) -> None:
        """Refuse an invalid side."""
        if not 0 <= self.min_box_px < float("inf"):
            what = f"min_box_px must be at least 0, got {self.min_box_px}"
            raise ValueError(f"{what}: give 0 or more")

    def options(self) -> dict[str, str]:
        """Return the options that decide membership, with the filters in use."""
        smallest = repr(float(self.min_box_px)).removesuffix(".0")
        filters = {
            "licenses": ",".join(map(str, sorted({*self.licenses}))),
            "min_box_px": smallest if self.min_box_px else "",
            "skip_crowd": "yes" if self.skip_crowd else "",
            "skip_unannotated": "yes" if self.skip_unannotated else "",
        }
        asked = {name: value for name, value in filters.items() if value}
        return {"orphans": "drop" if self.drop_orphans else "stop", **asked}


@dataclass(frozen=True)
class CocoReader:
    """Reads the annotation files of a split.

    Attributes:
        rules: strictness and filters.
        access: access to stores.
        panoptic_splits: splits that have a root of panoptic PNGs.
        splitting: rule for an image's split of the data set.
    """

    rules: CocoRules = field(default_factory=CocoRules)
    access: Access = DEFAULT_ACCESS
    panoptic_splits: frozenset[str] = frozenset()
    splitting: Splitting = field(default_factory=Splitting)

    def __call__(self, files: tuple[str, tuple[str, ...]]) -> Iterator[Item]:
        """Yield the items of a split's files, given as (split, URIs in any order)."""
        split, uris = files
        yield from self.read(split, [(uri, read_uri(uri, self.access)) for uri in uris])

    def read(self, split: str, sources: Iterable[tuple[str, bytes]]) -> Iterator[Item]:
        """Yield the samples of files, their rejects, and notes on the rest.

        Args:
            split: the split that the files are given for.
            sources: names, for messages, and bytes of the files, in any order.

        Raises:
            RuntimeError: an `E-ANN-…` line; `E-ARG` when files and options do not fit;
                `E-SRC-SPLIT` when an image's field has no valid split or group.
        """
        in_order = sorted(sources, key=_identity)
        for (where, data), (other, same) in itertools.pairwise(in_order):
            if data == same:
                what = f"has the bytes of {where}"
                raise run_fault("E-ANN-JOIN", other, what, "give one of them")
        ids, outlines = self.rules.string_ids, self.rules.segmentations
        name = next(iter(self.splitting.fields.values()), "")
        parsed = [
            CocoFile(data, where, string_ids=ids, image_field=name, segmentations=outlines)
            for where, data in in_order
        ]
        files = CocoFiles(parsed)
        self._check_kinds(files, split)
        yield from _ImageReader(files, split, self).items()

    def _check_kinds(self, files: CocoFiles, split: str) -> None:
        """Refuse kinds of files that do not fit the options."""
        panoptic, found = split in self.panoptic_splits, files.found
        what = remedy = ""
        if "panoptic" in found and not panoptic:
            what, remedy = "a panoptic file, and no folder of its PNGs", "give --panoptic_images"
        if panoptic and "panoptic" not in found:
            what = "a folder of panoptic PNGs, and no panoptic file"
            remedy = "give it in --annotations"
        others = [kind for kind in found if kind in ("captions", "panoptic")]
        if self.rules.per_annotation and others:
            what = f"a {others[0]} file, for which records of one object each have no place"
            remedy = "leave it out, or give another --layout"
        if what:
            raise run_fault("E-ARG", f"split {split}", what, remedy)


def _identity(source: tuple[str, bytes]) -> tuple[str, str]:
    """Return a file's sort key. It depends on content, so the given order has no effect."""
    where, data = source
    return f"{len(data)}:{google_crc32c.value(data):08x}", where


class _ImageReader:
    """Makes the samples of files, with rejects and notes that account for every annotation."""

    def __init__(self, files: CocoFiles, given: str, reader: CocoReader) -> None:
        self._files, self._given = files, given
        self._splitting = reader.splitting
        self._rules = rules = reader.rules
        self._split_by_id = {image.id: self._draw_split(image) for image in files.images}
        self._annotations = Counter[str]()
        self._category_ids = {label.id for label in files.labels}
        self._has_objects = "boxes" in files.found
        self._positions = files.positions() if rules.per_annotation else {}

    def items(self) -> Iterator[Item]:
        """Yield orphans, then each image's samples, rejects and notes, then the summaries."""
        yield from self._orphans()
        images = self._files.annotated_images(segmentations=self._rules.segmentations)
        for position, annotated in enumerate(images):
            split = self._split(annotated.image.id)
            self._annotations[split] += annotated.num_annotations
            if annotated.repairs:
                yield SplitTally(split, repairs={**annotated.repairs})
            yield from self._items_of(annotated, split, position)
        yield from self._summaries()

    def _draw_split(self, image: CocoImage) -> str:
        fields = {name: self._files.field_of(image) for name in self._splitting.fields.values()}
        return self._splitting.split_of(self._given, str(image.id), fields, _where(image))

    def _split(self, image_id: int | str) -> str:
        """Return an image's split. An unknown image gets one by its id, or the first image's."""
        if image_id in self._split_by_id:
            return self._split_by_id[image_id]
        if "split_by" in self._splitting.fields:  # An unknown image has no fields.
            return next(iter(self._split_by_id.values()), self._splitting.splits(())[0])
        return self._splitting.split_of_file(self._given, str(image_id))

    def _orphans(self) -> Iterator[Rejected]:
        """Yield rejects of the annotations without an image, unless they stop the run."""
        for file, orphan in self._files.orphans:
            split = self._split(orphan.image_id)
            self._annotations[split] += 1
            detail = f"image_id {orphan.image_id} is not in images"
            bad = BadAnnotation(orphan.id, "E-ANN-ORPHAN", detail)
            yield self._rejected(bad, split, file.where)

    def _summaries(self) -> Iterator[SplitTally]:
        """Yield the notes on all images together, after they were read."""
        files, counts = self._files, self._annotations
        sources = files.sources() if self._splitting.is_given else []  # counts of whole files
        first = files.count_first_ids(self._split) if files.repeats_ids() else counts
        for split in self._splitting.splits([self._given]):
            yield SplitTally(
                split,
                repeated_annotation_ids=counts[split] - first[split],
                labels=files.labels,
                found=files.found,
                sources=sources if len(sources) > 1 else [],
                licenses=files.licenses,
            )

    def _items_of(self, annotated: AnnotatedImage, split: str, position: int) -> Iterator[Item]:
        """Yield the samples of an image, its dropped annotations, and notes on filtered ones.

        If samples are objects, an object that cannot be placed is dropped here. Otherwise its
        record would have no object.
        """
        image, objects = annotated.image, annotated.objects
        per_object = self._rules.per_annotation
        if self._rules.licenses and license_of(image) not in self._rules.licenses:
            listed = len(objects) if per_object else 1
            yield _skipped(split, "license", listed, annotated.num_annotations)
            if per_object:
                yield SplitTally(split, images=1, images_without_samples=int(not objects))
            return
        bad, kept = [*annotated.bad], []
        for one in objects:
            if per_object and (fault := self._fault_of_box(one.fields, image)):
                bad.append(BadAnnotation(one.annotation_id, *fault))
            elif reason := self._reason_to_skip(one.fields):
                yield _skipped(split, reason, int(per_object), 1)
            else:
                kept.append(one)
        annotated = annotated._replace(objects=kept)
        for dropped in bad:
            key = str(dropped.annotation_id if per_object else image.id)
            yield self._rejected(dropped, split, _where(image), key, image.file_name)
        if per_object:
            misplaced = len(bad) - len(annotated.bad)
            without = int(misplaced == len(objects))  # also if it has none
            yield SplitTally(split, images=1, images_without_samples=without)
            to_make = [
                (self._positions[one.annotation_id], AnnotatedImage(image, [one], []))
                for one in kept
            ]
        else:
            to_make = [(position, annotated)]
            if self._rules.skip_unannotated and not self._is_annotated(annotated):
                left = annotated.num_annotations - len(annotated.bad)
                yield _skipped(split, "unannotated", 1, left)
                return
        if to_make:
            yield from self._checked_categories(image, split)
        for sample_position, one_sample in to_make:
            yield self._sample(one_sample, split, sample_position)

    def _sample(self, annotated: AnnotatedImage, split: str, position: int) -> Sample:
        image, objects = annotated.image, annotated.objects
        key = str(objects[0].annotation_id if self._rules.per_annotation else image.id)
        file_name, segments = annotated.panoptic or ("", None)
        fields = PictureFields(
            width_px=image.width,
            height_px=image.height,
            objects=[one.fields for one in objects],
            captions=[text for _, text in annotated.captions],
            segments=segments,
            image_id=image.id,
            license_id=license_of(image),
            negative_category_ids=image.neg_category_ids or [],
            not_exhaustive_category_ids=image.not_exhaustive_category_ids or [],
        )
        blobs = [Blob(self._given, image.file_name)]  # the root of photos has the split's name
        ids = [one.annotation_id for one in objects]
        ids += [annotation_id for annotation_id, _ in annotated.captions]
        if segments is not None:
            blobs.append(Blob(panoptic_root(self._given), file_name))
            ids.append(image.id)
        payload = b""
        if self._rules.segmentations:
            payload = pack([one.segmentation for one in objects])
        return Sample(split, key, position, tuple(blobs), pack(fields), tuple(ids), payload=payload)

    def _reason_to_skip(self, found: ObjectFields) -> str:
        """Return the name of the filter that leaves an object out; empty for none."""
        _, _, width_px, height_px = found.bbox_xywh_px
        if self._rules.skip_crowd and found.is_crowd:
            return "crowd"
        return "small_box" if min(width_px, height_px) < self._rules.min_box_px else ""

    def _fault_of_box(self, found: ObjectFields, image: CocoImage) -> Reason | None:
        """Return the fault of an object's box, if the image size is known by now."""
        if not self._rules.annotated_size:
            return None
        box = place_box(found.bbox_xywh_px, image.width, image.height)
        return None if isinstance(box, PlacedBox) else box

    def _is_annotated(self, annotated: AnnotatedImage) -> bool:
        if self._has_objects:
            image, objects = annotated.image, annotated.objects
            return any(not self._fault_of_box(one.fields, image) for one in objects)
        return bool(annotated.captions) or annotated.panoptic is not None

    def _checked_categories(self, image: CocoImage, split: str) -> Iterator[SplitTally]:
        """Drop unknown categories from LVIS's lists, if orphans may be dropped."""
        for name in ("neg_category_ids", "not_exhaustive_category_ids"):
            given = getattr(image, name) or []
            unknown = [found for found in given if found not in self._category_ids]
            if not unknown:
                continue
            if not self._rules.drop_orphans:
                what = f"{name} has {unknown[0]}, which is not in categories"
                fault = "E-ANN-CATEGORY", _where(image), what, _ORPHANS_REMEDY
                raise run_fault(*fault)
            setattr(image, name, [found for found in given if found in self._category_ids])
            yield SplitTally(split, repairs={"unknown_category_dropped": len(unknown)})

    def _rejected(
        self, bad: BadAnnotation, split: str, where: str, key: str = "", file_name: str = ""
    ) -> Rejected:
        """Return the reject of an annotation, or stop the run if orphans may not be dropped."""
        if FAULTS[bad.code].exit_code and not self._rules.drop_orphans:
            what = f"annotation {bad.annotation_id}: {bad.detail}"
            raise run_fault(bad.code, where, what, _ORPHANS_REMEDY)
        sample = Sample(split, key, -1, (Blob(self._given, file_name),), b"", (bad.annotation_id,))
        return sample.reject("read_coco", bad.code, bad.detail)


def _where(image: CocoImage) -> str:
    return f"image {image.id} ({image.file_name})"


def _skipped(split: str, reason: str, samples: int, annotations: int) -> SplitTally:
    """Return the note on samples and annotations that a filter leaves out."""
    return SplitTally(
        split,
        listed=samples,
        annotations=annotations,
        skipped={reason: samples},
        skipped_annotations={reason: annotations},
    )
