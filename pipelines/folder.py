"""Folders of classes to sharded .tfrec: `beam-tfrec folder --help`."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import apache_beam as beam

from beam_tfrec.pipelines.cli import FlagGroup, main
from beam_tfrec.pipelines.data_set import ImagesConfig
from beam_tfrec.pipelines.flags import SourceParser, first_label_of, paths_of
from beam_tfrec.pipelines.run import Command
from beam_tfrec.schemas.layouts import PIXEL_DTYPES, Layout, classification
from beam_tfrec.transforms.images.conversion import Color, Encoding
from beam_tfrec.transforms.sources.listing import ListFiles
from beam_tfrec.transforms.sources.read_folder import FOLDER, FolderReader
from beam_tfrec.transforms.sources.read_samples import SourceSamples

LAYOUTS: Mapping[str, type[classification.ClassifiedLayout]] = {
    layout.name: layout
    for layout in (
        classification.ClassificationLayout,
        classification.ImagenetLayout,
        classification.TutorialLayout,
        classification.TensorLayout,
        classification.RawLayout,
    )
}


@dataclass(frozen=True)
class FolderConfig(ImagesConfig):
    """A whole conversion of images in folders of classes."""

    layout: Layout = field(default_factory=classification.ClassificationLayout, kw_only=True)

    split_fields: ClassVar[frozenset[str]] = frozenset([FOLDER])
    classes_are_folders: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a conversion if the layout would reject every image."""
        super().__post_init__()
        of_imagenet = isinstance(self.layout, classification.ImagenetLayout)
        for option, value in (("reencode", Encoding.PNG), ("color", Color.GRAY)):
            if of_imagenet and getattr(self.conversion, option) is value:
                got = f"{option} {value.value}"
                raise ValueError(f"layout imagenet holds JPEGs of RGB, got {got}: omit it")

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from the listing."""
        listed = root | "ListFiles" >> ListFiles(self.roots, self.access, self.in_order)
        read = listed.pieces | "ReadFolder" >> self.samples_step(FolderReader(self.splitting))
        return read._replace(root_tallies=listed.root_tallies)


def add_flags(parser: SourceParser) -> None:
    """Add the flags of the source and its layouts."""
    folders = "folder per split with a folder of images for each class, or data set"
    parser.add_sources(images=("DIR", folders))
    add_layout_flags(parser)


def add_layout_flags(parser: SourceParser, default: str | None = "classification") -> FlagGroup:
    """Add the flags of layouts of an image and its class; return their group."""
    group = parser.group("records (docs/layouts.md)")
    layouts = "keys of Model Garden (classification), TPU scripts (imagenet) or TensorFlow tutorial"
    layouts += "; pixels as a tensor with the class's name (tensor), or with size and label (raw)"
    group.choice("--layout", layouts, list(LAYOUTS), default)
    dtype = "type of the pixels of --layout tensor (default float32) or raw (default uint8)"
    group.choice("--dtype", dtype, list(PIXEL_DTYPES))
    parser.add_class_flags("default 0; with --layout imagenet 1")
    return group


def layout_of(flags: argparse.Namespace) -> classification.ClassifiedLayout:
    """Return the layout that the flags ask for.

    Raises:
        ValueError: when --dtype comes with a layout without pixels, or the first label is negative.
    """
    layout = LAYOUTS[flags.layout or "classification"]
    first_label = first_label_of(flags, layout.first_label)
    if issubclass(layout, classification.TensorLayout):
        return layout(first_label, flags.dtype or layout.dtype)
    if flags.dtype is not None:
        what = f"come with layout tensor or raw, got {flags.layout}"
        raise ValueError(f"dtype must {what}: leave it out")
    return layout(first_label)


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    return {**paths_of(flags, "images"), "layout": layout_of(flags)}


_EXAMPLE = "--images train=flowers/train val=flowers/val"
run = Command("folder", FolderConfig, add_flags, fields_of, _EXAMPLE)

if __name__ == "__main__":
    main(run.name)
