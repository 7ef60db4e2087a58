"""COCO photos and annotations to sharded .tfrec: `beam-tfrec coco --help`."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import apache_beam as beam

from beam_tfrec.pipelines.cli import config_of, main, parse_several_per_split
from beam_tfrec.pipelines.data_set import ImagesConfig, check_same_splits, check_splits_named
from beam_tfrec.pipelines.flags import SourceParser, feature_names, parse_int, paths_of
from beam_tfrec.pipelines.run import Command
from beam_tfrec.schemas.geometry.masks import png_codec
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.layouts.detection import GROUPS, DetectionLayout
from beam_tfrec.schemas.layouts.groups import GroupedLayout
from beam_tfrec.schemas.layouts.pictures import SizeMismatch
from beam_tfrec.schemas.layouts.tfds import KerasLayout, TfdsLayout
from beam_tfrec.schemas.samples import panoptic_root
from beam_tfrec.transforms.sources.listing import ListFiles
from beam_tfrec.transforms.sources.read_coco import CocoReader, CocoRules
from beam_tfrec.transforms.sources.read_samples import SourceSamples

LAYOUTS: Mapping[str, type[GroupedLayout]] = {
    layout.name: layout for layout in (DetectionLayout, KerasLayout, TfdsLayout)
}


@dataclass(frozen=True)
class CocoConfig(ImagesConfig):
    """A whole conversion of COCO files.

    Attributes:
        annotations: URIs of the annotation files per split, in any order; their content shows
            their kind.
        rules: how strictly annotation files are read.
        panoptic_images: URI of the root of panoptic PNGs per split that has them.
    """

    annotations: Mapping[str, Sequence[str]]
    layout: Layout = field(default_factory=DetectionLayout, kw_only=True)
    rules: CocoRules = field(default_factory=CocoRules)
    panoptic_images: Mapping[str, str] = field(default_factory=dict)

    split_fields: ClassVar[None] = None  # only the files show the fields of images

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        check_same_splits(images=self.images, annotations=self.annotations)
        super().__post_init__()
        fields = self.splitting.fields
        if len({*fields.values()}) > 1:
            what = f"{' and '.join(fields)} must name one field of images at most"
            got = " and ".join(fields.values())
            raise ValueError(f"{what}, got {got}: give --group_by a table")
        check_splits_named("panoptic_images", self.panoptic_images, "--images", self.images)
        if self.rules.string_ids and self.layout.int64_ids:
            name = self.layout.name
            raise ValueError(f"string_ids needs layout detection, got {name}: number the ids")

    @property
    def roots(self) -> dict[str, str]:
        """URI per root name of the samples' blobs."""
        panoptic = {panoptic_root(split): uri for split, uri in self.panoptic_images.items()}
        return {**self.images, **panoptic}

    def files_of(self, split: str) -> Sequence[str]:
        """Return the annotation files of a given split."""
        return self.annotations[split]

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from the annotations."""
        rules = replace(  # the user's, and what the layout needs of the files
            self.rules,
            per_annotation=self.layout.per_annotation,
            segmentations=self.layout.reads_segmentations,
            annotated_size=getattr(self.layout, "on_size_mismatch", None)
            is not SizeMismatch.TRUST_IMAGE,
        )
        reader = CocoReader(rules, self.access, frozenset(self.panoptic_images), self.splitting)
        of_splits = [(split, tuple(uris)) for split, uris in sorted(self.annotations.items())]
        annotation_files = root | "Files" >> beam.Create(of_splits)
        read = annotation_files | "ReadCoco" >> self.samples_step(reader)
        images = root | "ListFiles" >> ListFiles(self.roots, self.access)
        return read._replace(listing=images.pieces, root_tallies=images.root_tallies)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        codec = {"panoptic_codec": png_codec()} if self.panoptic_images else {}
        return super().options() | codec | self.rules.options()


def add_flags(parser: SourceParser) -> None:
    """Add the flags of the source and its layouts."""
    annotations = "COCO annotation files per split, in any order: their content says their kind"
    group = parser.add_sources(
        images=("DIR", "folder of images or data set per split; file_name is relative to it"),
        annotations=("FILE", annotations),
    )
    group.several("--panoptic_images", "folder of panoptic PNGs per split", "[SPLIT=]DIR")
    group.switch("--string_ids", "accept ids that are text (default: int64 only)", rare=True)
    orphans = "annotations of unknown images or categories: stop the run, or drop them"
    group.choice("--orphans", orphans, ["stop", "drop"], "stop", rare=True)
    parser.add_size_flag(group)
    group = parser.group("filters; the summary counts what each leaves out", rare=True)
    licenses = "keep only images with one of these license ids (default: all images)"
    group.text("--licenses", licenses, "ID,ID")
    group.switch("--skip_crowd", "leave out objects that are crowds")
    smallest = "leave out objects with a box side below this (default 0)"
    group.number("--min_box_px", smallest, 0, type=float)
    group.switch("--skip_unannotated", "leave out images that have no object, or none left")
    group = parser.group("records (docs/layouts.md)")
    layouts = "detection, for Model Garden; keras, an Example per annotation; tfds, as coco/2017"
    group.choice("--layout", layouts, list(LAYOUTS), "detection")
    groups = ", ".join(g.name for g in GROUPS)
    not_usual = ", ".join(g.name for g in GROUPS if not g.by_default)
    unset = f"default: all that the files hold, except {not_usual}"
    group.text("--features", f"annotations to write: {groups} ({unset})", "NAME,NAME")
    ids = "ids of the files, or contiguous from 1 (default original; contiguous from 0 for tfds)"
    group.choice("--category_ids", ids, ["original", "contiguous"])
    parser.add_drop_flag()


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    if flags.layout == TfdsLayout.name and flags.category_ids == "original":  # with gaps
        raise ValueError("category_ids of layout tfds must be contiguous, got original: omit it")
    licenses = [] if flags.licenses is None else flags.licenses.split(",")
    return {
        **paths_of(flags, "images", "panoptic_images"),
        # `Command.configure` has replaced a missing --split by the default.
        "annotations": parse_several_per_split("annotations", flags.annotations, flags.split),
        "layout": config_of(
            LAYOUTS[flags.layout],
            flags,
            features=feature_names(flags.features),
            first_label=1 if flags.category_ids == "contiguous" else None,
        ),
        "rules": config_of(
            CocoRules,
            flags,
            drop_orphans=flags.orphans == "drop",
            licenses=tuple(parse_int("licenses", part) for part in licenses),
        ),
    }


run = Command("coco", CocoConfig, add_flags, fields_of, "--images photos --annotations photos.json")

if __name__ == "__main__":
    main(run.name)
