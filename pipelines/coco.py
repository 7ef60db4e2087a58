"""COCO photos and annotations to sharded .tfrec: `python -m pipelines.coco --help`."""

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import apache_beam as beam

from pipelines.command import guarded
from pipelines.data_set import DataSetConfig, write_data_set
from pipelines.data_set_flags import add_data_set_flags, make_run
from pipelines.launch import RunConfig, execute
from pipelines.layout_flags import add_layout_flags, add_size_flag, layout_of
from pipelines.options import (
    FlagParser,
    add_drop_flag,
    check_split_names,
    drop_budget_of,
    parse_flags,
    parse_numbers,
    parse_per_split,
    parse_several_per_split,
    shard_names_of,
)
from schemas.gray_png import png_codec
from schemas.layouts import Layout
from schemas.layouts.detection import DetectionLayout
from schemas.layouts.frames import SizeMismatch
from schemas.manifest import Manifest
from schemas.samples import panoptic_root
from transforms.list_blobs import ListBlobs
from transforms.sources.coco_reading import CocoReading
from transforms.sources.coco_samples import CocoRules
from transforms.sources.read_coco import ReadCoco
from transforms.sources.read_samples import SourceSamples


@dataclass(frozen=True)
class CocoConfig(DataSetConfig):
    """A whole conversion of COCO files.

    Attributes:
        images: URI of the image root per split, such as `{"train": "gs://b/train2017"}`.
        annotations: URIs of the annotation files per split, in any order; each is known by its
            content.
        rules: how strictly annotation files are taken.
        panoptic_images: URI of the root of panoptic PNGs per split that has them.
    """

    images: Mapping[str, str]
    annotations: Mapping[str, Sequence[str]]
    layout: Layout = field(default_factory=DetectionLayout, kw_only=True)
    rules: CocoRules = field(default_factory=CocoRules)
    panoptic_images: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        check_split_names(self.images)
        _check_annotations(self.annotations)
        if not self.annotations or set(self.images) != set(self.annotations):
            raise ValueError(
                f"images and annotations must name the same splits, got images"
                f" {sorted(self.images)} and annotations {sorted(self.annotations)}:"
                f" give both as SPLIT=PATH"
            )
        super().__post_init__()
        if unknown := set(self.panoptic_images) - set(self.images):
            raise ValueError(
                f"panoptic_images must name splits of --images, got {sorted(unknown)}:"
                f" give {sorted(self.images)}"
            )
        if self.rules.string_ids and self.layout.int64_ids:
            raise ValueError(
                f"string_ids must not be given with layout {self.layout.name}, whose records hold"
                " ids as numbers: give --layout detection, or number the ids"
            )

    @property
    def given(self) -> tuple[str, ...]:
        """The splits that sources are given for."""
        return tuple(self.images)

    @property
    def roots(self) -> dict[str, str]:
        """URI per root name of the samples' blobs."""
        panoptic = {panoptic_root(split): uri for split, uri in self.panoptic_images.items()}
        return {**self.images, **panoptic}

    @property
    def root_places(self) -> tuple[frozenset[str], ...]:
        """Names of the roots of photos, and of panoptic images where there are any."""
        panoptic = frozenset(map(panoptic_root, self.panoptic_images))
        return (frozenset(self.images), *([panoptic] if panoptic else []))

    @property
    def split_fields(self) -> None:
        """The files tell which fields their images have."""

    @property
    def source_files(self) -> Mapping[str, Sequence[str]]:
        """The annotation files per split of the data set."""
        if self.splitting.is_given:
            return self.annotations
        (files,) = self.annotations.values()
        return dict.fromkeys(self.splits, files)

    def reading(self) -> CocoReading:
        """Return how annotation files are read, with what the layout asks for of them."""
        rules = replace(
            self.rules,
            per_annotation=self.layout.per_annotation,
            segmentations=self.layout.reads_segmentations,
            annotated_size=getattr(self.layout, "on_size_mismatch", None)
            is not SizeMismatch.TRUST_IMAGE,
            image_field=next(iter(self.splitting.fields.values()), ""),
        )
        return CocoReading(
            rules, self.exclude, self.access, frozenset(self.panoptic_images), self.splitting
        )

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        return {
            **super().options(),
            **({"panoptic_codec": png_codec()} if self.panoptic_images else {}),
            **self.rules.options(),
        }


def _check_annotations(annotations: Mapping[str, Sequence[str]]) -> None:
    for split, uris in annotations.items():
        if isinstance(uris, str):  # which is a sequence too, of characters
            raise ValueError(
                f"annotations of {split} must be a list of files, got the text {uris!r}:"
                f" give [{uris!r}]"
            )
        if not uris:
            raise ValueError(f"annotations of {split} must not be empty, got []: give a file")
        if repeated := [uri for uri in uris if list(uris).count(uri) > 1]:
            raise ValueError(
                f"annotations of {split} must name each file once, got {repeated[0]!r} twice:"
                " remove one"
            )


def read_sources(root: beam.Pipeline, config: CocoConfig) -> SourceSamples:
    """Build the part of the graph before plan and shards: samples from the annotations."""
    read = root | "ReadCoco" >> ReadCoco(config.annotations, config.reading())
    listing = root | "ListBlobs" >> ListBlobs(config.roots, config.access, cuts=read.cuts)
    return SourceSamples(read.samples, read.rejected, read.files, listing)


def build(root: beam.Pipeline, config: CocoConfig) -> beam.PCollection[Manifest]:
    """Build the graph: samples from the annotations, shards from the samples, one manifest."""
    return write_data_set(config, read_sources(root, config))


def parser() -> FlagParser:
    """Return the command's flags."""
    flags = FlagParser("beam-tfrec coco", "COCO photos and annotations to sharded .tfrec files.")
    group = flags.add_argument_group("sources")
    group.add_argument(
        "--images",
        nargs="+",
        action="extend",
        required=True,
        metavar="[SPLIT=]DIR",
        help="image root per split: file_name is relative to it (required)",
    )
    group.add_argument(
        "--annotations",
        nargs="+",
        action="extend",
        required=True,
        metavar="[SPLIT=]FILE",
        help="COCO annotation files per split, in any order: instances, person_keypoints, captions"
        " or panoptic, each known by its content (required)",
    )
    group.add_argument(
        "--panoptic_images",
        nargs="+",
        action="extend",
        default=[],
        metavar="[SPLIT=]DIR",
        help="root of the panoptic PNGs per split: file_name of a panoptic annotation is relative"
        " to it (default: none)",
    )
    group.add_argument(
        "--split", default="train", help="split of a path without SPLIT= (default train)"
    )
    group.add_argument(
        "--string_ids", action="store_true", help="accept ids that are text (default: int64 only)"
    )
    group.add_argument(
        "--orphans",
        choices=["stop", "drop"],
        default="stop",
        help="annotations of unknown images or categories: stop the run, or drop and count them"
        " (default stop)",
    )
    _add_filter_flags(flags)
    add_size_flag(group)
    add_layout_flags(flags)
    add_data_set_flags(flags)
    add_drop_flag(flags)
    return flags


def _add_filter_flags(flags: FlagParser) -> None:
    group = flags.add_argument_group("filters, each counted")
    group.add_argument(
        "--licenses",
        metavar="ID,ID",
        help="take only images whose license has one of these ids (default: any or none)",
    )
    group.add_argument(
        "--skip_crowd", action="store_true", help="leave out objects that are crowds (default: not)"
    )
    group.add_argument(
        "--min_box_px",
        type=float,
        default=0,
        metavar="N",
        help="leave out objects whose annotated box has a side of less than N px (default 0)",
    )
    group.add_argument(
        "--skip_unannotated",
        action="store_true",
        help="leave out images of which no object is left; without files of objects, those without"
        " any annotation (default: keep them)",
    )


def rules_of(flags: argparse.Namespace) -> CocoRules:
    """Return how the flags ask for annotation files to be taken."""
    return CocoRules(
        string_ids=flags.string_ids,
        drop_orphans=flags.orphans == "drop",
        licenses=() if flags.licenses is None else parse_numbers("licenses", flags.licenses),
        skip_crowd=flags.skip_crowd,
        min_box_px=flags.min_box_px,
        skip_unannotated=flags.skip_unannotated,
    )


def configure(argv: Sequence[str]) -> tuple[RunConfig[CocoConfig], list[str]]:
    """Return the run that the arguments ask for, and the arguments that are Beam's.

    Raises:
        ValueError: with the value and the remedy.
    """
    flags, beam_args = parse_flags(parser(), argv)
    make_config = functools.partial(
        CocoConfig,
        images=parse_per_split("images", flags.images, bare=flags.split),
        annotations=parse_several_per_split("annotations", flags.annotations, bare=flags.split),
        layout=layout_of(flags),
        rules=rules_of(flags),
        panoptic_images=parse_per_split("panoptic_images", flags.panoptic_images, bare=flags.split),
        drop_budget=drop_budget_of(flags),
        names=shard_names_of(flags, plain=flags.layout == "tfds"),
    )
    return make_run(make_config, flags, argv, "coco"), beam_args


def run(argv: Sequence[str]) -> None:
    """Convert as the arguments say; returns when the data set is committed."""
    run_config, beam_args = configure(argv)
    execute(run_config, build, beam_args, read_sources)


def main() -> None:
    """Run as a command: one line and an exit code for every fault."""
    sys.exit(guarded(run, sys.argv[1:]))


if __name__ == "__main__":
    main()
