"""Images with a JSON file each to sharded .tfrec: `python -m pipelines.sidecar --help`."""

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import apache_beam as beam

from pipelines.class_flags import add_class_flags, first_label_of, label_file_of
from pipelines.command import guarded
from pipelines.data_set import DataSetConfig, write_data_set
from pipelines.data_set_flags import add_data_set_flags, make_run
from pipelines.launch import RunConfig, execute
from pipelines.layout_flags import add_size_flag, feature_names
from pipelines.options import (
    FlagParser,
    add_drop_flag,
    drop_budget_of,
    not_empty,
    parse_flags,
    parse_per_split,
    shard_names_of,
)
from pipelines.table_flags import parse_types
from schemas.annotations.side_files import SideFormat
from schemas.layouts import Layout
from schemas.layouts.detection import DetectionLayout
from schemas.layouts.frames import SizeMismatch
from schemas.layouts.groups import instead_of
from schemas.layouts.table import TableLayout
from schemas.manifest import Manifest
from transforms.pipeline_spool import spool_for
from transforms.sources.join_files import JoinFiles, NamedFile, Sides
from transforms.sources.listed_files import ListFiles
from transforms.sources.read_samples import ReadSamples, SourceSamples
from transforms.sources.read_sidecar import SideReader
from transforms.sources.side_contents import SideContents, SideObjects, SideValues
from transforms.sources.side_files import (
    NameByField,
    ReadSideFiles,
    SideNames,
    annotations_root,
    divide_glob,
)

AUTO, FLAT = "auto", "flat"
_FEATURES = ("boxes", "masks", "polygons")


@dataclass(frozen=True)
class SidecarConfig(DataSetConfig):
    """A whole conversion of images with a JSON file each.

    Attributes:
        images: URI of the folder of images per split.
        annotations: URI of the folder of JSON files per split, or a glob of them.
        format: of the JSON files; None for each its own, by its content.
        join_by: the field by which JSON files name their images, keys with dots between; empty
            where they have their images' names.
        allow_unannotated: an image without a JSON file is a sample without objects.
    """

    images: Mapping[str, str]
    annotations: Mapping[str, str]
    format: SideFormat | None = None
    join_by: str = ""
    allow_unannotated: bool = False
    layout: Layout = field(
        default_factory=functools.partial(DetectionLayout, first_label=1), kw_only=True
    )

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        if set(self.images) != set(self.annotations):
            raise ValueError(
                f"images and annotations must name the same splits, got images"
                f" {sorted(self.images)} and annotations {sorted(self.annotations)}:"
                f" give both as SPLIT=PATH"
            )
        super().__post_init__()

    @property
    def given(self) -> tuple[str, ...]:
        """The splits that sources are given for."""
        return tuple(self.images)

    @property
    def split_fields(self) -> None:
        """Names of what `split_by` and `group_by` may ask of a sample: what JSON files hold."""
        return None

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        return self.images

    @property
    def annotation_roots(self) -> dict[str, str]:
        """URI per name of the roots of JSON files."""
        folders = {split: divide_glob(uri)[0] for split, uri in self.annotations.items()}
        return {annotations_root(split): folder for split, folder in folders.items()}

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URI per root name of what the sources' listings show, by which they are recognised."""
        return {**self.images, **self.annotation_roots}

    @property
    def contents(self) -> SideContents:
        """What samples carry of JSON files: the values that the layout has types of, or objects."""
        if isinstance(self.layout, TableLayout):
            return SideValues(self.layout.types)
        return SideObjects(self.format, self.layout.reads_segmentations)

    @property
    def globs(self) -> dict[str, str]:
        """Which names are JSON files, per split."""
        return {split: divide_glob(uri)[1] for split, uri in self.annotations.items()}

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        return {
            **super().options(),
            "format": self._format_name,
            "join_by": self.join_by,
            "unannotated": "keep" if self.allow_unannotated else "reject",
        }

    @property
    def _format_name(self) -> str:
        if isinstance(self.layout, TableLayout):
            return FLAT
        return self.format.value if self.format else AUTO


def read_sources(root: beam.Pipeline, config: SidecarConfig) -> SourceSamples:
    """Build the part of the graph before plan and shards: samples from joined files."""
    names = SideNames(config.globs, whole=bool(config.join_by))
    listed = root | "ListFiles" >> ListFiles(
        config.listed_roots,
        config.access,
        config.in_order,
        names.reads,
    )
    files = listed.files | "NameFiles" >> beam.FlatMap(names).with_output_types(NamedFile)
    if config.join_by:
        files |= "NameByField" >> NameByField(
            config.join_by, config.annotation_roots, config.access
        )
    spool = spool_for(files.pipeline, config.access.spool_dir)
    texts = (
        files
        | "JoinFiles" >> JoinFiles(_sides(config), spool)
        | "ReadSideFiles" >> ReadSideFiles(config.annotation_roots, config.access)
    )
    reader = SideReader(config.splitting, config.contents, config.allow_unannotated, config.join_by)
    read = texts | "ReadSidecar" >> ReadSamples(
        reader, config.source_files, config.exclude, config.access
    )
    return read._replace(tallies=listed.tallies)


def build(root: beam.Pipeline, config: SidecarConfig) -> beam.PCollection[Manifest]:
    """Build the graph: files joined by name, samples from them, one manifest."""
    return write_data_set(config, read_sources(root, config))


def _sides(config: SidecarConfig) -> Sides:
    remedy = "check --images and --annotations, or name the field that says it with --join_by"
    if config.join_by:
        remedy = f"check --images and --annotations, and that {config.join_by} names images"
    return Sides(
        "--images", "--annotations", remedy, config.allow_unannotated, config.budget.allowed
    )


def parser() -> FlagParser:
    """Return the command's flags."""
    flags = FlagParser(
        "beam-tfrec sidecar", "Images with a JSON file of annotations each to sharded .tfrec files."
    )
    group = flags.add_argument_group("sources")
    group.add_argument(
        "--images",
        nargs="+",
        action="extend",
        required=True,
        metavar="[SPLIT=]DIR",
        help="folder of images per split (required)",
    )
    group.add_argument(
        "--annotations",
        nargs="+",
        action="extend",
        required=True,
        metavar="[SPLIT=]DIR|GLOB",
        help="folder of JSON files per split, which may be that of the images, or a glob of which *"
        " and ? stay within a folder, ** does not; an image's file has its name below its folder,"
        " extensions aside (required)",
    )
    group.add_argument(
        "--split", default="train", help="split of a path without SPLIT= (default train)"
    )
    group.add_argument(
        "--format",
        choices=[AUTO, *(known.value for known in SideFormat), FLAT],
        help="of the JSON files: LabelMe's, SA-1B's, or each by its content; flat for --fields of"
        " any (default auto; with --fields flat)",
    )
    group.add_argument(
        "--join_by",
        type=not_empty,
        metavar="FIELD",
        help="field of the JSON files that names the image, such as imagePath or image.file_name;"
        " they are then read twice (default: a JSON file has its image's name)",
    )
    group.add_argument(
        "--allow_unannotated",
        action="store_true",
        help="keep images without a JSON file, as samples without objects (default: reject them)",
    )
    add_size_flag(group)
    flags.add_argument_group("records (docs/layouts.md)").add_argument(
        "--features",
        metavar="NAME,NAME",
        help=f"what is written of the objects, of {', '.join(_FEATURES)} (default boxes)",
    )
    group.add_argument(
        "--fields",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH=TYPE,...",
        help="fields of the JSON files, keys with dots between, that become features of the same"
        " names beside the image's: int64, float or bytes, with [] for lists; a missing single"
        " value leaves its feature out (default: objects are written)",
    )
    add_class_flags(flags, "default 1")
    add_data_set_flags(flags)
    add_drop_flag(flags)
    return flags


def layout_of(flags: argparse.Namespace) -> Layout:
    """Return the layout that the flags ask for.

    Raises:
        ValueError: when files of objects have no such features, or flags exclude each other.
    """
    if flags.fields or flags.format == FLAT:
        return _layout_of_fields(flags)
    features = None if flags.features is None else feature_names(flags.features)
    if unknown := [name for name in features or () if name not in _FEATURES]:
        raise ValueError(
            f"features must be of {', '.join(_FEATURES)}, got {flags.features!r}:"
            f" {instead_of(unknown, _FEATURES)}"
        )
    return DetectionLayout(
        on_size_mismatch=SizeMismatch(flags.on_size_mismatch),
        features=features,
        first_label=first_label_of(flags, 1),
    )


def _layout_of_fields(flags: argparse.Namespace) -> TableLayout:
    if not flags.fields or flags.format not in (None, FLAT):
        raise ValueError(
            f"fields must come with format flat, got format {flags.format} and fields"
            f" {' '.join(flags.fields) or 'none'}: give --fields PATH=TYPE, or leave both out"
        )
    for name in ("features", "label_file", "first_label"):
        if getattr(flags, name) is not None:
            raise ValueError(
                f"{name} must be of objects, got {getattr(flags, name)} with fields: leave it out"
            )
    if flags.on_size_mismatch != SizeMismatch.AUTO.value:
        raise ValueError(
            f"on_size_mismatch must be of objects, got {flags.on_size_mismatch} with fields:"
            " leave it out"
        )
    types = parse_types(flags.fields)
    for path in types:
        if not all(path.split(".")):
            raise ValueError(
                f"fields must be keys with single dots between, got {path!r}: remove the empty key"
            )
    return TableLayout(types, with_image=True)


def configure(argv: Sequence[str]) -> tuple[RunConfig[SidecarConfig], list[str]]:
    """Return the run that the arguments ask for, and the arguments that are Beam's.

    Raises:
        ValueError: with the value and the remedy.
    """
    flags, beam_args = parse_flags(parser(), argv)
    make_config = functools.partial(
        SidecarConfig,
        images=parse_per_split("images", flags.images, bare=flags.split),
        annotations=parse_per_split("annotations", flags.annotations, bare=flags.split),
        format=None if flags.format in (None, AUTO, FLAT) else SideFormat(flags.format),
        join_by=flags.join_by or "",
        allow_unannotated=flags.allow_unannotated,
        layout=layout_of(flags),
        label_file=label_file_of(flags),
        drop_budget=drop_budget_of(flags),
        names=shard_names_of(flags),
    )
    return make_run(make_config, flags, argv, "sidecar"), beam_args


def run(argv: Sequence[str]) -> None:
    """Convert as the arguments say; returns when the data set is committed."""
    run_config, beam_args = configure(argv)
    execute(run_config, build, beam_args, read_sources)


def main() -> None:
    """Run as a command: one line and an exit code for every fault."""
    sys.exit(guarded(run, sys.argv[1:]))


if __name__ == "__main__":
    main()
