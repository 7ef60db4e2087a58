"""The splits of COCO files: which one each image is of, and what became of a split's images.

Files are given for one split; their images are all of it, or drawn from there. An annotation goes
with its image, so that one photo is never in two splits. Every count is kept per split, since sums
must hold in each.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from schemas.annotations.coco import AnnotatedImage, CocoFiles
from schemas.annotations.coco_file import CocoImage, Orphan
from schemas.manifest import SourceFile
from schemas.splits import HASH, Splitting
from transforms.sources.list_blobs import is_cut
from transforms.sources.read_samples import SplitSource

NOTHING_EXCLUDED: Mapping[str, Mapping[str, str]] = {}
"""Keys of samples to leave out, with the file that each was rejected for, per split."""


@dataclass
class SplitCounts:
    """What became of a split's images and annotations so far.

    Attributes:
        split: of the data set.
        exclude: keys of its samples to leave out, with the file that each was rejected for.
        images: listed images.
        annotations: listed annotations, orphans included.
        samples: listed samples, where they are objects.
        without_samples: images that have no usable object, where samples are objects.
        excluded: samples left out on request.
        excluded_annotations: their annotations.
        skipped: samples left out by a filter, by filter.
        skipped_annotations: annotations left out by a filter, by filter.
        repairs: what was mended.
        cuts: names at which a listing of photos can be divided.
        panoptic_cuts: those of panoptic PNGs.
    """

    split: str
    exclude: Mapping[str, str]
    images: int = 0
    annotations: int = 0
    samples: int = 0
    without_samples: int = 0
    excluded: int = 0
    excluded_annotations: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    skipped_annotations: Counter[str] = field(default_factory=Counter)
    repairs: Counter[str] = field(default_factory=Counter)
    cuts: list[str] = field(default_factory=list)
    panoptic_cuts: list[str] = field(default_factory=list)

    def skip(self, reason: str, samples: int, annotations: int) -> None:
        """Count what a filter leaves out."""
        self.skipped[reason] += samples
        self.skipped_annotations[reason] += annotations


class CocoSplits:
    """The splits of the images of one split's files, as they are given or drawn."""

    def __init__(
        self,
        files: CocoFiles,
        given: str,
        splitting: Splitting,
        exclude: Mapping[str, Mapping[str, str]] = NOTHING_EXCLUDED,
    ) -> None:
        """Find the split of every image.

        Args:
            files: as parsed, with the field that decides.
            given: the split that they are given for.
            splitting: which split a sample belongs to.
            exclude: what to leave out, per split.

        Raises:
            RuntimeError: `E-SRC-SPLIT` when a field does not say the split or group of an image.
        """
        self._files = files
        self._splitting = splitting
        self._counts = {
            split: SplitCounts(split, exclude.get(split, {})) for split in splitting.splits([given])
        }
        self._given = self._counts[given] if splitting.is_given else None
        self._repairs: Mapping[str, int] = {}
        self._split_of: dict[int | str, str] = {}
        if self._given is None:
            self._split_of = {image.id: self._draw(image, given) for image in files.images}

    def admit(self, annotated: AnnotatedImage) -> SplitCounts:
        """Return the counts of an image's split, with the image and its annotations listed."""
        counts = self._given or self._counts[self._split_of[annotated.image.id]]
        counts.images += 1
        counts.annotations += annotated.num_annotations
        if is_cut(annotated.image.name):
            counts.cuts.append(annotated.image.name)
        if self._given is None:
            self._count_repairs(counts)
        return counts

    def admit_orphan(self, orphan: Orphan) -> SplitCounts:
        """Return the counts of the split that an annotation without an image is listed in.

        By the hash of the image's id, and where a field says splits the first image's.
        """
        counts = self._given or self._counts[self._split_of_id(orphan.image_id)]
        counts.annotations += 1
        return counts

    def sources(
        self, identity: str, sources: list[SourceFile], *, per_annotation: bool
    ) -> Iterator[SplitSource]:
        """Yield what the files held of every split, once every image was read.

        Args:
            identity: by which a rerun recognises the files.
            sources: the files, where there are several.
            per_annotation: whether samples are objects.
        """
        files, repeated = self._files, self._repeated_ids()
        for split, counts in self._counts.items():
            repairs = counts.repairs
            if self._given is not None:
                repairs = repairs + Counter(files.repairs)
            yield SplitSource(
                split=split,
                identity=identity,
                images=counts.images,
                annotations=counts.annotations,
                excluded_images=counts.excluded,
                excluded_annotations=counts.excluded_annotations,
                repeated_annotation_ids=repeated[split],
                labels=files.labels,
                cuts=counts.cuts,
                found=files.found,
                panoptic_cuts=counts.panoptic_cuts,
                samples=counts.samples if per_annotation else None,
                images_without_samples=counts.without_samples,
                skipped=dict(sorted((+counts.skipped).items())),
                skipped_annotations=dict(sorted((+counts.skipped_annotations).items())),
                repairs=dict(sorted((+repairs).items())),
                sources=sources,
                licenses=files.licenses,
            )

    def _draw(self, image: CocoImage, given: str) -> str:
        fields = {name: self._files.field_of(image) for name in self._splitting.fields.values()}
        where = f"image {image.id} ({image.name})"
        return self._splitting.split_for(given, str(image.id), fields, where)

    def _split_of_id(self, image_id: int | str) -> str:
        """Return the split of an image, or of one that is not there."""
        if image_id in self._split_of:
            return self._split_of[image_id]
        if self._splitting.by == HASH:
            return self._splitting.split_of(str(image_id))
        return next(iter(self._split_of.values()), next(iter(self._counts)))

    def _count_repairs(self, counts: SplitCounts) -> None:
        """Count what opening the last image mended, which is little and seldom."""
        repairs = self._files.repairs
        if repairs != self._repairs:
            counts.repairs += Counter(repairs) - Counter(self._repairs)
            self._repairs = repairs

    def _repeated_ids(self) -> Counter[str]:
        """Return per split how many annotations have an id that an earlier one has."""
        total = self._files.num_repeated_ids
        if self._given is not None or not total:
            return Counter(dict.fromkeys(self._counts, total))
        first = self._files.count_first_ids(self._split_of_id)
        listed = {split: counts.annotations for split, counts in self._counts.items()}
        return Counter({split: listed[split] - first[split] for split in listed})
