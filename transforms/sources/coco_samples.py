"""Samples from the annotation files of a split: which images and annotations, and their sums."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.annotations.coco import AnnotatedImage, CocoFiles, license_of
from schemas.annotations.coco_file import CocoFile, CocoImage, Kind
from schemas.faults import FAULTS, Rejected, fault_line
from schemas.fields import BadAnnotation, ObjectFields, PictureFields
from schemas.geometry.boxes import PlacedBox, place_box
from schemas.samples import Blob, Sample, pack, panoptic_root
from schemas.splits import Splitting
from transforms.sources.coco_splits import NOTHING_EXCLUDED, CocoSplits, SplitCounts
from transforms.sources.list_blobs import is_cut
from transforms.sources.read_samples import SplitSource

STAGE = "read_coco"
_GIVEN = Splitting()
_ORPHANS_REMEDY = "correct the file, or give --orphans drop"


@dataclass(frozen=True)
class CocoRules:
    """How strictly COCO files are taken, and what of them is wanted.

    Attributes:
        string_ids: accept ids that are strings.
        drop_orphans: drop annotations of unknown images or categories, instead of stopping.
        segmentations: read segmentations into the samples' payload.
        per_annotation: make a sample of every object, not of every image.
        licenses: ids of the licenses that images may have; empty for any or none.
        skip_crowd: leave out objects that are crowds.
        min_box_px: leave out objects whose annotated box has a shorter side.
        skip_unannotated: leave out images that have no object left; where no file is one of
            objects, images without any annotation.
        annotated_size: boxes lie in images of the size that the files give; else in those of a size
            that only the image tells, so that none of them can be outside yet.
        image_field: name of the field of images that their splits go by; empty for none.
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
    image_field: str = ""

    def __post_init__(self) -> None:
        """Refuse a side that is none, and put licenses in order."""
        if not 0 <= self.min_box_px < float("inf"):
            raise ValueError(
                f"min_box_px must be at least 0, got {self.min_box_px}: give 0 or more"
            )
        object.__setattr__(self, "licenses", tuple(sorted(set(self.licenses))))

    def options(self) -> dict[str, str]:
        """Return the options that decide membership; filters only where they are asked for."""
        filters = {
            "licenses": ",".join(map(str, self.licenses)),
            "min_box_px": _number(self.min_box_px) if self.min_box_px else "",
            "skip_crowd": "yes" if self.skip_crowd else "",
            "skip_unannotated": "yes" if self.skip_unannotated else "",
        }
        asked = {name: value for name, value in filters.items() if value}
        return {"orphans": "drop" if self.drop_orphans else "stop", **asked}


def _number(value: float) -> str:
    """Return a number as text that no other has.

    >>> _number(8.0), _number(8), _number(8.0000001)
    ('8', '8', '8.0000001')
    """
    return repr(float(value)).removesuffix(".0")


class CocoSource(NamedTuple):
    """An annotation file.

    Attributes:
        data: its bytes.
        where: its name, for messages.
        identity: by which it is recognised; equal bytes have an equal one.
    """

    data: bytes
    where: str
    identity: str = ""


def read_coco(
    sources: Sequence[CocoSource],
    split: str,
    rules: CocoRules,
    exclude: Mapping[str, Mapping[str, str]] = NOTHING_EXCLUDED,
    identity: str = "",
    *,
    panoptic: bool = False,
    splitting: Splitting = _GIVEN,
) -> Iterator[Sample | Rejected | SplitSource]:
    """Yield the samples of files, the annotations dropped, and last what each split held.

    Args:
        sources: the annotation files given for one split, in any order.
        split: the split that they are given for.
        rules: how they are taken.
        exclude: keys of samples to leave out, with the file that each was rejected for, if known;
            per split of the data set.
        identity: by which a rerun recognises the files.
        panoptic: whether there is a root of panoptic PNGs, `{split}/panoptic`.
        splitting: which split of the data set an image and all its annotations belong to.

    Raises:
        RuntimeError: an `E-ANN-…` line; `E-ARG` where files and options do not go together;
            `E-SRC-SPLIT` where a field does not say the split or group of an image.
    """
    files = _parse_sources(sources, rules)
    _check_kinds(files, split, rules, panoptic=panoptic)
    splits = CocoSplits(files, split, splitting, exclude)
    reader = _ImageReader(files, splits, split, rules)
    yield from reader.orphans()
    for annotated in files.annotated_images():
        yield from reader.samples_of(annotated)
    several = found if len(found := files.sources()) > 1 else []
    yield from splits.sources(identity, several, per_annotation=rules.per_annotation)


def _parse_sources(sources: Sequence[CocoSource], rules: CocoRules) -> CocoFiles:
    """Return the files of a split, joined in an order that the one given does not change.

    Raises:
        RuntimeError: an `E-ANN-…` line, `E-ANN-JOIN` when two files are the same.
    """
    in_order = sorted(sources, key=lambda source: (source.identity, source.where))
    for one, other in itertools.pairwise(in_order):
        if one.data == other.data:
            what = f"has the bytes of {one.where}"
            raise RuntimeError(fault_line("E-ANN-JOIN", other.where, what, "give one of them"))
    files = [
        CocoFile(
            source.data,
            source.where,
            string_ids=rules.string_ids,
            image_field=rules.image_field,
        )
        for source in in_order
    ]
    return CocoFiles(files, segmentations=rules.segmentations)


def _check_kinds(files: CocoFiles, split: str, rules: CocoRules, *, panoptic: bool) -> None:
    """Refuse kinds of files that the options have no place for."""
    what = remedy = ""
    if files.has(Kind.PANOPTIC) and not panoptic:
        what, remedy = "a panoptic file, and no folder of its PNGs", "give --panoptic_images"
    if panoptic and not files.has(Kind.PANOPTIC):
        what, remedy = "a folder of panoptic PNGs, and no panoptic file", "give it in --annotations"
    if rules.per_annotation and files.has(Kind.CAPTIONS, Kind.PANOPTIC):
        kind = "captions" if files.has(Kind.CAPTIONS) else "panoptic"
        what = f"a {kind} file, for which records of one object each have no place"
        remedy = "leave it out, or give another --layout"
    if what:
        raise RuntimeError(fault_line("E-ARG", f"split {split}", what, remedy))


class _ImageReader:
    """Makes the samples of files, and counts what becomes of their images and annotations."""

    def __init__(self, files: CocoFiles, splits: CocoSplits, root: str, rules: CocoRules) -> None:
        self._files = files
        self._splits = splits
        self._root = root
        self._rules = rules
        self._category_ids = {label.id for label in files.labels}
        self._has_objects = files.has(Kind.INSTANCES, Kind.KEYPOINTS)
        self._filters_objects = rules.skip_crowd or rules.min_box_px > 0
        self._position = 0
        self._places = files.places() if rules.per_annotation else {}

    def orphans(self) -> Iterator[Rejected]:
        """Yield the annotations without an image, unless they stop the run."""
        for orphan in self._files.orphans:
            detail = f"image_id {orphan.image_id} is not in images"
            if not self._rules.drop_orphans:
                what = f"{orphan.path} (id {orphan.annotation_id}): {detail}"
                line = fault_line("E-ANN-ORPHAN", orphan.where, what, _ORPHANS_REMEDY)
                raise RuntimeError(line)
            yield Rejected(
                code="E-ANN-ORPHAN",
                stage=STAGE,
                split=self._splits.admit_orphan(orphan).split,
                annotation_ids=(orphan.annotation_id,),
                detail=detail,
            )

    def samples_of(self, annotated: AnnotatedImage) -> Iterator[Sample | Rejected]:
        """Yield the samples of an image and its dropped annotations."""
        counts = self._splits.admit(annotated)
        if self._rules.per_annotation:
            yield from self._read_objects(annotated, counts)
            return
        key, position = str(annotated.image.id), self._position
        self._position += 1
        if key in counts.exclude:
            _check_excluded(key, annotated, counts)
            counts.excluded += 1
            counts.excluded_annotations += annotated.num_annotations
            return
        if not self._has_license(annotated.image):
            counts.skip("license", 1, annotated.num_annotations)
            return
        for bad in annotated.bad:
            yield self._rejected(bad, annotated.image, key, counts)
        if self._filters_objects:
            annotated = self._filtered(annotated, counts)
        if self._rules.skip_unannotated and not self._is_annotated(annotated):
            counts.skip("unannotated", 1, annotated.num_annotations - len(annotated.bad))
            return
        yield self._sample(annotated, key, position, counts)

    def _read_objects(
        self, annotated: AnnotatedImage, counts: SplitCounts
    ) -> Iterator[Sample | Rejected]:
        """Yield a sample for each object; one that cannot be placed is dropped here already.

        Else its record would be one without an object.
        """
        image, listed = annotated.image, counts.samples
        if not self._has_license(image):
            counts.samples += len(annotated.objects)
            counts.skip("license", len(annotated.objects), annotated.num_annotations)
            counts.without_samples += not annotated.objects
            return
        for bad in annotated.bad:
            yield self._rejected(bad, image, str(bad.annotation_id), counts)
        for place, (annotation_id, found) in enumerate(annotated.objects):
            key, position = str(annotation_id), self._places[annotation_id]
            if fault := self._fault_of_place(found, image):
                yield self._rejected(BadAnnotation(annotation_id, *fault), image, key, counts)
                continue
            counts.samples += 1
            if key in counts.exclude:
                _check_excluded(key, annotated, counts)
                counts.excluded += 1
                counts.excluded_annotations += 1
            elif reason := self._reason_to_skip(found):
                counts.skip(reason, 1, 1)
            else:
                outlines = annotated.segmentations[place : place + 1]
                one = AnnotatedImage(image, [(annotation_id, found)], [], outlines)
                yield self._sample(one, key, position, counts)
        counts.without_samples += counts.samples == listed

    def _filtered(self, annotated: AnnotatedImage, counts: SplitCounts) -> AnnotatedImage:
        kept: list[int] = []
        for place, (_, found) in enumerate(annotated.objects):
            if reason := self._reason_to_skip(found):
                counts.skipped_annotations[reason] += 1
            else:
                kept.append(place)
        outlines = annotated.segmentations
        return annotated._replace(
            objects=[annotated.objects[place] for place in kept],
            segmentations=[outlines[place] for place in kept] if outlines else [],
        )

    def _reason_to_skip(self, found: ObjectFields) -> str:
        """Return the filter that leaves an object out, or nothing."""
        _, _, width_px, height_px = found.bbox_xywh_px
        if self._rules.skip_crowd and found.is_crowd:
            return "crowd"
        return "small_box" if min(width_px, height_px) < self._rules.min_box_px else ""

    def _fault_of_place(self, found: ObjectFields, image: CocoImage) -> tuple[str, str] | None:
        """Return (code, detail) of why no image can hold an object, where that is known by now."""
        if not self._rules.annotated_size:
            return None
        box = place_box(found.bbox_xywh_px, image.width_px, image.height_px)
        return None if isinstance(box, PlacedBox) else box

    def _has_license(self, image: CocoImage) -> bool:
        return not self._rules.licenses or license_of(image) in self._rules.licenses

    def _is_annotated(self, annotated: AnnotatedImage) -> bool:
        if self._has_objects:
            found_in = annotated.image
            return any(not self._fault_of_place(found, found_in) for _, found in annotated.objects)
        return bool(annotated.captions) or annotated.panoptic is not None

    def _sample(
        self, annotated: AnnotatedImage, key: str, position: int, counts: SplitCounts
    ) -> Sample:
        image, panoptic = annotated.image, annotated.panoptic
        if panoptic is not None and is_cut(panoptic.file_name):
            counts.panoptic_cuts.append(panoptic.file_name)
        if image.neg_category_ids or image.not_exhaustive_category_ids:
            self._check_categories(image, counts)
        return to_sample(
            annotated,
            counts.split,
            position,
            key,
            segmentations=self._rules.segmentations,
            root=self._root,
        )

    def _check_categories(self, image: CocoImage, counts: SplitCounts) -> None:
        """Drop unknown categories from LVIS's lists, where that is allowed."""
        for field in ("neg_category_ids", "not_exhaustive_category_ids"):
            given = getattr(image, field) or []
            unknown = [found for found in given if found not in self._category_ids]
            if not unknown:
                continue
            if not self._rules.drop_orphans:
                where = f"image {image.id} ({image.name})"
                what = f"{field} has {unknown[0]}, which is not in categories"
                raise RuntimeError(fault_line("E-ANN-CATEGORY", where, what, _ORPHANS_REMEDY))
            counts.repairs["unknown_category_dropped"] += len(unknown)
            setattr(image, field, [found for found in given if found in self._category_ids])

    def _rejected(
        self, bad: BadAnnotation, image: CocoImage, key: str, counts: SplitCounts
    ) -> Rejected:
        """Return the reject of an annotation, unless its code stops a run that drops none."""
        if FAULTS[bad.code].exit_code and not self._rules.drop_orphans:
            where, path = self._files.locate(bad)
            what = f"{path} (id {bad.annotation_id}): {bad.detail}"
            raise RuntimeError(fault_line(bad.code, where, what, _ORPHANS_REMEDY))
        return Rejected(
            code=bad.code,
            stage=STAGE,
            split=counts.split,
            key=key,
            annotation_ids=(bad.annotation_id,),
            file_name=image.name,
            detail=bad.detail,
        )


def _check_excluded(key: str, annotated: AnnotatedImage, counts: SplitCounts) -> None:
    """Refuse to leave out a sample for a file that it does not have.

    Keys are ids of images in one layout and of annotations in another, so that the list of a
    run of the other one would leave out good samples.
    """
    names = [annotated.image.name]
    if annotated.panoptic is not None:
        names.append(annotated.panoptic.file_name)
    excluded = counts.exclude[key]
    if excluded and excluded not in names:
        what = f"it was rejected for {excluded!r}, and is of {names[0]!r} now"
        remedy = "give --exclude the file of a run of these files in this layout"
        where = f"sample {key} of {counts.split}"
        raise RuntimeError(fault_line("E-ARG", where, what, remedy))


def to_sample(
    annotated: AnnotatedImage,
    split: str,
    position: int,
    key: str | None = None,
    *,
    segmentations: bool = False,
    root: str = "",
) -> Sample:
    """Return the sample of an image with its annotations.

    Args:
        annotated: the image.
        split: of the sample.
        position: of the sample.
        key: of the sample; None for the image's id.
        segmentations: put them into the payload.
        root: name of the root of its photo; empty for the split's.
    """
    root = root or split
    image, panoptic = annotated.image, annotated.panoptic
    fields = PictureFields(
        width_px=image.width_px,
        height_px=image.height_px,
        objects=[found for _, found in annotated.objects],
        captions=[text for _, text in annotated.captions],
        segments=None if panoptic is None else panoptic.segments,
        image_id=image.id,
        license_id=license_of(image),
        negative_category_ids=image.neg_category_ids or [],
        not_exhaustive_category_ids=image.not_exhaustive_category_ids or [],
    )
    blobs = [Blob(root, image.name)]
    ids = [annotation_id for annotation_id, _ in annotated.objects]
    ids += [annotation_id for annotation_id, _ in annotated.captions]
    if panoptic is not None:
        blobs.append(Blob(panoptic_root(root), panoptic.file_name))
        ids.append(image.id)
    return Sample(
        split=split,
        key=str(image.id) if key is None else key,
        position=position,
        blobs=tuple(blobs),
        fields=pack(fields),
        annotation_ids=tuple(ids),
        payload=pack(list(annotated.segmentations)) if segmentations else b"",
    )
