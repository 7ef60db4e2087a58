"""Pascal VOC's images and XML files to sharded .tfrec: `beam-tfrec voc --help`."""

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from beam_tfrec.pipelines.cli import main, parse_several_per_split
from beam_tfrec.pipelines.data_set import check_same_splits
from beam_tfrec.pipelines.flags import SourceParser, parse_splits, paths_of
from beam_tfrec.pipelines.run import Command
from beam_tfrec.pipelines.sidecar import SideConfig, add_side_flags, detection_of
from beam_tfrec.schemas.annotations.voc_file import parse_image_set, parse_voc
from beam_tfrec.schemas.faults import Reason
from beam_tfrec.schemas.geometry.masks import png_codec
from beam_tfrec.schemas.samples import mask_root
from beam_tfrec.transforms.sources.join_files import NameList
from beam_tfrec.transforms.sources.read_sidecar import SideNames, SideSample, read_objects
from beam_tfrec.transforms.storage import join_uri

_MASKS = "semantic", "object_masks"
_FEATURES = ("boxes", "difficult", "truncated", "occluded", "pose", *_MASKS)


@dataclass(frozen=True)
class VocConfig(SideConfig):
    """A whole conversion of images with an XML file each.

    Attributes:
        offset_px: number that is subtracted from `xmin` and `ymin`.
        image_sets: URI of the list of the images' names, by split; none to read all images.
        segmentation: URIs of the folders of PNGs per split: of classes, and perhaps of objects.
    """

    offset_px: int = 1
    image_sets: Mapping[str, str] = field(default_factory=dict)
    segmentation: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        if self.segmentation:
            check_same_splits(images=self.images, segmentation=self.segmentation)
        if {*map(len, self.segmentation.values())} not in (set(), {1}, {2}):
            what = "segmentation must be one or two folders, and as many for each split"
            remedy = "give that of classes, then that of objects"
            raise ValueError(f"{what}, got {dict(self.segmentation)}: {remedy}")
        super().__post_init__()

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        pngs = {
            mask_root(split, kind): uri
            for split, uris in self.segmentation.items()
            for kind, uri in zip(self.masks, uris, strict=True)
        }
        return {**self.images, **pngs}

    @property
    def masks(self) -> tuple[str, ...]:
        """Kinds of PNGs that each image has."""
        return _MASKS[: max(map(len, self.segmentation.values()), default=0)]

    @property
    def shared_files(self) -> Sequence[str]:
        """URIs of files that identify the sources, of any split."""
        return [*super().shared_files, *self.image_sets.values()]

    @property
    def side_names(self) -> SideNames:
        """The rule that pairs images with XML files."""
        lists = {
            split: NameList([uri], parse_image_set, self.access)
            for split, uri in self.image_sets.items()
        }
        return SideNames(self.globs, suffix=".xml", lists=lists, masks=self.masks)

    @property
    def read(self) -> Callable[[bytes | None], SideSample | Reason]:
        """The parser of an XML file."""
        parse = functools.partial(parse_voc, offset_px=self.offset_px)
        return functools.partial(read_objects, parse=parse)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        lists = ",".join(sorted(self.image_sets))
        own = {"voc_offset": str(self.offset_px), "image_sets": lists}
        if self.masks:
            own["segmentation"] = f"{' '.join(self.masks)}, by {png_codec()}"
        return super().options() | own


def add_flags(parser: SourceParser) -> None:
    """Add the flags of the source."""
    group, _ = add_side_flags(parser, "XML", f"{', '.join(_FEATURES)} (default: all there are)")
    lists = "folder of a list of images for each of --splits, as train.txt (default: all images)"
    group.text("--image_sets", lists, "DIR")
    masks = "folders of PNGs per split: SegmentationClass, or it and SegmentationObject"
    group.several("--segmentation", masks, "[SPLIT=]DIR", rare=True)
    offset = "number to subtract from xmin and ymin: 1 for VOC's pixels, 0 for edges from 0"
    group.choice("--voc_offset", offset, ["0", "1"], "1")


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own.

    Raises:
        ValueError: when `image_sets` has no splits, or folders name splits too.
    """
    pngs = parse_several_per_split("segmentation", flags.segmentation, bare=flags.split)
    fields: dict[str, Any] = {**paths_of(flags, "images", "annotations"), "segmentation": pngs}
    fields |= {"offset_px": int(flags.voc_offset), "layout": detection_of(flags, _FEATURES)}
    if not flags.image_sets:
        return fields
    folders = {*fields["images"], *fields["annotations"], *pngs}
    shares, splits = parse_splits(flags.splits) if flags.splits else ({}, ())
    if not splits or shares or folders != {flags.split}:
        what = "image_sets must come with splits, and with folders without SPLIT="
        got = f"splits {flags.splits!r} and folders of {' and '.join(sorted(folders))}"
        raise ValueError(f"{what}, got {got}: give such as --splits train,val")
    flags.splits = None  # they are given by the lists, not by a field of samples
    for name in ("images", "annotations", "segmentation"):
        fields[name] = {split: uri for uri in fields[name].values() for split in splits}
    lists = {split: join_uri(flags.image_sets, f"{split}.txt") for split in splits}
    return fields | {"image_sets": lists}


_EXAMPLE = "--images JPEGImages --annotations Annotations"
run = Command("voc", VocConfig, add_flags, fields_of, _EXAMPLE)

if __name__ == "__main__":
    main(run.name)
