"""Pascal VOC's images and XML files to sharded .tfrec: `beam-tfrec voc --help`."""

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from beam_tfrec.pipelines.cli import FlagParser, main
from beam_tfrec.pipelines.data_set import build as build
from beam_tfrec.pipelines.flags import parse_splits
from beam_tfrec.pipelines.run import Command
from beam_tfrec.pipelines.sidecar import SideConfig, add_side_flags, detection_of, side_fields
from beam_tfrec.schemas.annotations.coco_objects import Fault
from beam_tfrec.schemas.annotations.voc_file import parse_image_set, parse_voc
from beam_tfrec.schemas.columns import root_and_pattern
from beam_tfrec.transforms.sources.read_sidecar import (
    NameList,
    SideNames,
    SideSample,
    read_objects,
)
from beam_tfrec.transforms.storage import join_uri

_FEATURES = ("boxes", "difficult", "truncated", "occluded", "pose")


@dataclass(frozen=True)
class VocConfig(SideConfig):
    """A whole conversion of images with an XML file each.

    Attributes:
        offset_px: number that is subtracted from `xmin` and `ymin`.
        image_sets: URI of the list of the images' names, by split; none to read all images.
    """

    offset_px: int = 1
    image_sets: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> Sequence[str]:
        """URIs of files that identify the sources, of any split."""
        return [*super().files, *self.image_sets.values()]

    @property
    def side_names(self) -> SideNames:
        """The rule that pairs images with XML files."""
        globs = {split: root_and_pattern(uri)[1] for split, uri in self.annotations.items()}
        lists = {
            split: NameList(uri, parse_image_set, self.access)
            for split, uri in self.image_sets.items()
        }
        return SideNames(globs, suffix=".xml", lists=lists)

    @property
    def read(self) -> Callable[[bytes | None], SideSample | Fault]:
        """The parser of an XML file."""
        parse = functools.partial(parse_voc, offset_px=self.offset_px)
        return functools.partial(read_objects, parse=parse)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        lists = ",".join(sorted(self.image_sets))
        return {**super().options(), "voc_offset": str(self.offset_px), "image_sets": lists}


def add_flags(parser: FlagParser) -> None:
    """Add the flags of the source."""
    group, _ = add_side_flags(parser, "XML", f"{', '.join(_FEATURES)} (default: all there are)")
    lists = (
        "folder of a list of images for each of --splits, such as train.txt (default: all images)"
    )
    group.text("--image_sets", lists, "DIR")
    offset = "number to subtract from xmin and ymin: 1 for VOC's pixels, 0 for edges from 0"
    group.choice("--voc_offset", offset, ["0", "1"], "1")


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own.

    Raises:
        ValueError: when `image_sets` has no splits, or folders name splits too.
    """
    layout = detection_of(flags, _FEATURES)
    fields = {**side_fields(flags), "offset_px": int(flags.voc_offset), "layout": layout}
    if not flags.image_sets:
        return fields
    shares, splits = parse_splits(flags.splits) if flags.splits else ({}, ())
    folders = [*fields["images"], *fields["annotations"]]
    if not splits or shares or folders != [flags.split] * 2:
        raise ValueError(
            f"image_sets must come with splits, and with folders without SPLIT=, got splits"
            f" {flags.splits!r} and folders of {' and '.join(folders)}: give such as --splits"
            " train,val"
        )
    flags.splits = None  # they are given by the lists, not by a field of samples
    (images,), (annotations,) = fields["images"].values(), fields["annotations"].values()
    return fields | {
        "images": dict.fromkeys(splits, images),
        "annotations": dict.fromkeys(splits, annotations),
        "image_sets": {split: join_uri(flags.image_sets, f"{split}.txt") for split in splits},
    }


COMMAND = Command(
    "voc",
    VocConfig,
    add_flags,
    fields_of,
    "--images JPEGImages --annotations Annotations",
)

run = COMMAND.run  # `cli.run_command` calls it by name

if __name__ == "__main__":
    main(COMMAND.name)
