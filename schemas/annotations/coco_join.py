"""The annotation files of a split, joined on the image id.

Files are sorted by kind, then by content, so that their order on the command line has no effect.
If several files list an image, the first file wins. Annotations of all files are united, also of
two files of one kind.
"""

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from beam_tfrec.schemas.annotations.coco_file import (
    CocoAnnotation,
    CocoFile,
    CocoImage,
    CocoInstance,
    CocoPanoptic,
    CocoSegment,
    Kind,
    blob_name,
    refuse_repeated_ids,
)
from beam_tfrec.schemas.annotations.coco_objects import ObjectOpener, OpenedObject
from beam_tfrec.schemas.fields import BadAnnotation, SegmentFields
from beam_tfrec.schemas.labels import License, unite_labels
from beam_tfrec.schemas.manifest import Label, SourceFile

_KINDS_WITH_OBJECTS = Kind.INSTANCES, Kind.KEYPOINTS


class AnnotatedImage(NamedTuple):
    """An image with its annotations in the order of their ids, whatever the files' order.

    Attributes:
        image: entry of the first file that lists it.
        objects: objects with their ids and segmentations.
        bad: annotations that cannot be used.
        captions: (annotation id, text).
        panoptic: name of its panoptic PNG, as `blob_name` returns it, and the segments; None
            without a panoptic annotation.
        repairs: counts of repairs, by name.
    """

    image: CocoImage
    objects: list[OpenedObject]
    bad: list[BadAnnotation]
    captions: Sequence[tuple[int | str, str]] = ()
    panoptic: tuple[str, list[SegmentFields]] | None = None
    repairs: Mapping[str, int] = {}

    @property
    def num_annotations(self) -> int:
        """Number of the image's annotations, including unusable ones."""
        counted = len(self.objects) + len(self.bad) + len(self.captions)
        return counted + (self.panoptic is not None)


class CocoFiles:
    """The parsed files of a split, joined.

    Attributes:
        images: images of all files; ids and names are unique.
        labels: labels of all files, sorted by id.
        found: kinds of content, sorted: `boxes`, `captions`, `keypoints`, `license`, `lvis`,
            `panoptic`.
        orphans: annotations of images that no file lists, with their files.
    """

    def __init__(self, files: Sequence[CocoFile]) -> None:
        """Join files.

        Args:
            files: parsed files; the order within a kind must not depend on the command line.

        Raises:
            RuntimeError: an `E-ANN-…` line when they contradict each other.
        """
        self._files = sorted(files, key=lambda file: [*Kind].index(file.kind))
        self.images, self._other_sizes = _unite_images(self._files)
        self.labels = _labels_of(self._files)
        self.found = _found_in(self._files)
        self.orphans: list[tuple[CocoFile, CocoAnnotation]] = []
        self._by_image = [self._group(file) for file in self._files]
        self._joined: Counter[CocoFile] = Counter()
        # Has the ids of all categories, so it also recognises unknown ids.
        self._opener = ObjectOpener({label.id: len(label.keypoints) for label in self.labels})
        self._stuff = {
            category.id
            for file in self._files
            if file.kind is Kind.PANOPTIC
            for category in file.categories
            if not category.isthing
        }
        self._image_values: dict[int | str, str] = {}
        for file in reversed(self._files):  # the first file wins
            self._image_values |= file.image_values

    @property
    def licenses(self) -> list[License]:
        """The files' licenses, sorted by id. An id occurs twice if files disagree."""
        return sorted({license for file in self._files for license in file.licenses})

    def sources(self) -> list[SourceFile]:
        """Return what each file contributed. Call it after `annotated_images` has ended."""
        return [
            SourceFile(
                kind=file.kind.value,
                images=len(file.images),
                annotations=len(file.annotations),
                categories=len(file.categories),
                joined_annotations=self._joined[file],
                images_not_listed=len(self.images) - len(file.images),
                images_of_other_size=other_sizes,
            )
            for file, other_sizes in zip(self._files, self._other_sizes, strict=True)
        ]

    def field_of(self, image: CocoImage) -> str:
        """Return the requested field of an image, from the first file that has it."""
        return self._image_values.get(image.id, "")

    def repeats_ids(self) -> bool:
        """Return whether two annotations of one kind seem to have the same id.

        It compares hashes, since a set of all ids takes more memory. Different ids may have equal
        hashes; `count_first_ids` then finds no repeated id.
        """
        for annotations in self._annotations_by_kind():
            hashes = sorted(hash(one.id) for one in annotations)
            if any(map(operator.eq, hashes, itertools.islice(hashes, 1, None))):
                return True
        return False

    def count_first_ids(self, split_of: Callable[[int | str], str]) -> Counter[str]:
        """Return the number of distinct annotation ids by split, summed over kinds.

        Args:
            split_of: returns the split of an image id, also of an unknown one.
        """
        first: Counter[str] = Counter()
        for annotations in self._annotations_by_kind():
            image_of: dict[int | str, int | str] = {}
            for one in annotations:
                image_of.setdefault(one.id, one.image_id)
            first.update(map(split_of, image_of.values()))
        return first

    def _annotations_by_kind(self) -> Iterator[Iterator[CocoAnnotation]]:
        """Yield the annotations of each kind of file; instances and keypoints are one kind."""
        for kinds in (_KINDS_WITH_OBJECTS, [Kind.CAPTIONS], [Kind.PANOPTIC]):
            files = (file.annotations for file in self._files if file.kind in kinds)
            yield itertools.chain.from_iterable(files)

    def positions(self) -> dict[int | str, int]:
        """Return each annotation id's position, counted from 0 across all files."""
        positions: dict[int | str, int] = {}
        for file in self._files:
            for annotation in file.annotations:
                positions.setdefault(annotation.id, len(positions))
        return positions

    def annotated_images(self, *, segmentations: bool = False) -> Iterator[AnnotatedImage]:
        """Yield every image with its annotations, in the order of `images`; call it once.

        Args:
            segmentations: parse segmentations.
        """
        for image in self.images:
            instances: list[tuple[CocoFile, CocoInstance]] = []
            captions: list[tuple[int | str, str]] = []
            panoptic: list[tuple[CocoFile, CocoPanoptic]] = []
            for file, grouped in zip(self._files, self._by_image, strict=True):
                here = grouped.pop(image.id)
                if file.kind in _KINDS_WITH_OBJECTS:
                    instances += [(file, one) for one in here]
                elif file.kind is Kind.CAPTIONS:
                    captions += [(caption.id, caption.caption) for caption in here]
                else:
                    panoptic += [(file, entry) for entry in here]
            kept = self._join_keypoints(instances)
            objects, bad = self._opener.open_all(kept, image, segmentations=segmentations)
            objects.sort(key=_by_id)  # objects with equal ids by their fields
            bad.sort(key=_by_id)
            captions.sort(key=_by_id)
            opened = self._open_panoptic(panoptic, image) if panoptic else None
            if isinstance(opened, BadAnnotation):
                bad.append(opened)
                opened = None
            repairs = {**self._opener.repairs}
            self._opener.repairs.clear()
            yield AnnotatedImage(image, objects, bad, captions, opened, repairs)

    def _group(self, file: CocoFile) -> dict[int | str, list[Any]]:
        """Return a file's annotations by image, in the file's order; collect its orphans."""
        grouped: dict[int | str, list[Any]] = {image.id: [] for image in self.images}
        for annotation in file.annotations:
            of_image = grouped.get(annotation.image_id)
            if of_image is None:
                self.orphans.append((file, annotation))
            else:
                of_image.append(annotation)
        return grouped

    def _join_keypoints(self, given: Iterable[tuple[CocoFile, CocoInstance]]) -> list[CocoInstance]:
        """Return the instances of an image, with keypoints that another file has for them.

        Annotation id and category must be the same, and occur in exactly one file of each kind.
        Otherwise the match would depend on the order of files.
        """
        by_key: dict[tuple[int | str, int], list[tuple[CocoFile, CocoInstance]]] = {}
        for file, one in given:
            by_key.setdefault((one.id, one.category_id), []).append((file, one))
        kept: list[CocoInstance] = []
        for same in by_key.values():
            if [file.kind for file, _ in same] == [Kind.INSTANCES, Kind.KEYPOINTS]:
                (_, instance), (file, person) = same
                instance.keypoints = person.keypoints
                self._joined[file] += 1
                del same[1]
            kept += [one for _, one in same]
        return kept

    def _open_panoptic(
        self, entries: Sequence[tuple[CocoFile, CocoPanoptic]], image: CocoImage
    ) -> tuple[str, list[SegmentFields]] | BadAnnotation:
        file, entry = entries[0]
        if len(entries) > 1:
            other, second = entries[1]
            what = f"{other.path_of(second)} is a second one of image {entry.image_id},"
            what += f" after {file.path_of(entry)} of {file.where}"
            raise other.fault("E-ANN-DUPLICATE", what, "remove one")
        decoded: list[CocoSegment] = file.decode(
            entry.segments_info, list[CocoSegment], lambda: f"{file.path_of(entry)}.segments_info"
        )
        ids = Counter(segment.id for segment in decoded).most_common(1)
        if ids and ids[0][1] > 1:
            what = f"{file.path_of(entry)} (image {entry.image_id}) has segment {ids[0][0]} twice"
            raise file.fault("E-ANN-DUPLICATE", what, "remove one")
        segments = self._opener.open_segments(decoded, image, self._stuff)
        if isinstance(segments, tuple):
            return BadAnnotation(entry.image_id, *segments)
        try:
            return blob_name(entry.file_name), segments
        except ValueError as error:
            what = f"{file.path_of(entry)}: file_name {entry.file_name!r} {error}"
            remedy = "give names relative to --panoptic_images"
            raise file.fault("E-ANN-PATH", what, remedy) from None


def _unite_images(files: Sequence[CocoFile]) -> tuple[list[CocoImage], list[int]]:
    """Return the images of all files, and each file's number of images with another size."""
    united: dict[int | str, CocoImage] = {}
    other_sizes = []
    for file in files:
        differing = 0
        for image in file.images:
            known = united.setdefault(image.id, image)
            if known is not image:
                differing += (known.width, known.height) != (image.width, image.height)
                _add_to_image(known, image, files, file)
        other_sizes.append(differing)
    images = list(united.values())
    refuse_repeated_ids(images, f"{files[0].where} and {len(files) - 1} more of its split")
    return images, other_sizes


def _add_to_image(
    known: CocoImage, image: CocoImage, files: Sequence[CocoFile], file: CocoFile
) -> None:
    """Add fields that only a later file has; refuse another name of the image."""
    if known.file_name != image.file_name:
        first = next(other.where for other in files if known in other.images)
        what = f"image {image.id} is {image.file_name!r}, and {known.file_name!r} in {first}"
        raise file.fault("E-ANN-JOIN", what, "give files of the same images")
    for name in ("license", "neg_category_ids", "not_exhaustive_category_ids"):
        if getattr(known, name) is None:
            setattr(known, name, getattr(image, name))


def _labels_of(files: Sequence[CocoFile]) -> list[Label]:
    labels = [
        Label(category.id, category.name, keypoints=tuple(category.keypoints or ()))
        for file in files
        for category in file.categories
    ]
    return unite_labels(labels, " and ".join(file.where for file in files))


def _found_in(files: Sequence[CocoFile]) -> list[str]:
    images = [image for file in files for image in file.images]
    holds: Mapping[str, Any] = {
        "boxes": any(file.kind in _KINDS_WITH_OBJECTS for file in files),
        "captions": any(file.kind is Kind.CAPTIONS for file in files),
        "keypoints": any(file.kind is Kind.KEYPOINTS for file in files),
        "license": any(license_of(image) is not None for image in images),
        "lvis": any(
            image.neg_category_ids is not None or image.not_exhaustive_category_ids is not None
            for image in images
        ),
        "panoptic": any(file.kind is Kind.PANOPTIC for file in files),
    }
    return [name for name, held in holds.items() if held]


def license_of(image: CocoImage) -> int | None:
    """Return an image's license id; None if it is missing or not a whole number.

    >>> license_of(CocoImage(id=1, width=1, height=1, license=4.0))
    4
    """
    found = image.license
    is_id = type(found) in (int, float) and abs(found) < 2**53 and found == int(found)
    return int(found) if is_id else None


def _by_id(item: Any) -> tuple[bool, Any]:
    """Return a sort key of (id, ...) that puts numbers before texts."""
    return isinstance(item[0], str), item
