"""Open Images' photos and CSV tables to sharded .tfrec: `beam-tfrec openimages --help`."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam

from beam_tfrec.pipelines.cli import main
from beam_tfrec.pipelines.data_set import ImagesConfig, check_same_splits, check_splits_named
from beam_tfrec.pipelines.flags import SourceParser, paths_of
from beam_tfrec.pipelines.run import Command
from beam_tfrec.schemas.geometry.masks import png_codec
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.samples import mask_root
from beam_tfrec.transforms.shuffle.elements import spread
from beam_tfrec.transforms.sources import read_openimages
from beam_tfrec.transforms.sources.join_files import JoinFiles
from beam_tfrec.transforms.sources.listing import ListFiles
from beam_tfrec.transforms.sources.read_samples import SourceSamples


@dataclass(frozen=True)
class OpenImagesConfig(ImagesConfig):
    """A whole conversion of Open Images.

    `label_file` has the classes: a CSV file with a class and its display name a line.

    Attributes:
        boxes: URI of the table of boxes per split.
        image_labels: URI of the table of image-level labels per split that has one.
        rotation: URI of the list of images with their rotation per split that has one.
        masks: URI of the table of masks per split that has one.
        mask_images: URI of the folder of their PNGs per such split.
        allow_unannotated: an image without rows is a sample without objects.
    """

    boxes: Mapping[str, str]
    image_labels: Mapping[str, str] = field(default_factory=dict)
    rotation: Mapping[str, str] = field(default_factory=dict)
    masks: Mapping[str, str] = field(default_factory=dict)
    mask_images: Mapping[str, str] = field(default_factory=dict)
    allow_unannotated: bool = False
    layout: Layout = field(default_factory=lambda: DetectionLayout(first_label=1), kw_only=True)

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        if not self.label_file.lower().endswith(".csv"):
            what = f"classes must be a .csv file, got {self.label_file!r}"
            raise ValueError(f"{what}: give one, with a class and its display name a line")
        check_same_splits(images=self.images, boxes=self.boxes)
        super().__post_init__()
        for name in ("image_labels", "rotation", "masks"):
            check_splits_named(name, getattr(self, name), "--images", self.images)
        if self.masks or self.mask_images:
            check_same_splits(masks=self.masks, mask_images=self.mask_images)
        if self.rotation and not self.conversion.turns:
            what = "rotation must come with orientation upright, got keep"
            raise ValueError(f"{what}: add --orientation upright")

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        pngs = {mask_root(s, "instance_masks"): uri for s, uri in self.mask_images.items()}
        return {**self.images, **pngs}

    @property
    def tables(self) -> list[tuple[str, str, str]]:
        """Split, kind and URI of each table."""
        uris = {kind: getattr(self, kind) for kind in read_openimages.KINDS}
        return [(split, kind, uri) for kind in uris for split, uri in uris[kind].items()]

    @property
    def shared_files(self) -> Sequence[str]:
        """URIs of files that identify the sources, of any split."""
        return [*super().shared_files, *(uri for _, _, uri in self.tables)]

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from images joined with rows."""
        listed = root | "ListFiles" >> ListFiles(self.roots, self.access, self.in_order)
        images = listed.pieces | "NameFiles" >> beam.FlatMap(read_openimages.name_by_id)
        tables = spread(root | "Tables" >> beam.Create(self.tables))
        rows = tables | "ReadRows" >> beam.FlatMap(read_openimages.read_rows, self.access)
        joined = (images, rows) | "JoinFiles" >> JoinFiles()
        reader = read_openimages.OpenImagesReader(
            self.splitting,
            self.label_file,
            self.access,
            self.allow_unannotated,
            has_masks=bool(self.masks),
        )
        read = joined | "ReadOpenImages" >> self.samples_step(reader)
        return read._replace(root_tallies=listed.root_tallies)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        unannotated = "keep" if self.allow_unannotated else "reject"
        masks = {"masks": png_codec()} if self.masks else {}
        return super().options() | {"unannotated": unannotated} | masks


def add_flags(parser: SourceParser) -> None:
    """Add the flags of the source and its layout."""
    group = parser.add_sources(
        "sources (docs/openimages.md)",
        images=("DIR", "folder of images or data set per split; a file's name is the image's id"),
        boxes=("CSV", "table of boxes per split, such as train-annotations-bbox.csv"),
    )
    classes = "table of classes, such as class-descriptions-boxable.csv: its lines number them"
    group.add("--classes", classes, dest="label_file", metavar="CSV", required=True)
    labels = "table of image-level labels per split, with their confidences"
    group.several("--image_labels", labels, "[SPLIT=]CSV")
    rotation = "list of images per split, with the rotation of each, for --orientation upright"
    group.several("--rotation", rotation, "[SPLIT=]CSV", rare=True)
    masks = "table of masks per split, such as train-annotations-object-segmentation.csv"
    group.several("--masks", masks, "[SPLIT=]CSV", rare=True)
    pngs = "folder per split with the PNGs that --masks names, at any depth"
    group.several("--mask_images", pngs, "[SPLIT=]DIR", rare=True)
    unannotated = "keep images without a row (default: reject them)"
    group.switch("--allow_unannotated", unannotated, rare=True)
    parser.add_drop_flag()


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    return paths_of(flags, "images", "mask_images", *read_openimages.KINDS)


_EXAMPLE = "--images photos --boxes boxes.csv --classes classes.csv"
run = Command("openimages", OpenImagesConfig, add_flags, fields_of, _EXAMPLE)

if __name__ == "__main__":
    main(run.name)
