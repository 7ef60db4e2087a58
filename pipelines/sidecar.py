"""Images with a JSON file each to sharded .tfrec: `beam-tfrec sidecar --help`."""

import argparse
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import apache_beam as beam

from beam_tfrec.pipelines.cli import FlagGroup, config_of, main
from beam_tfrec.pipelines.data_set import ImagesConfig, check_same_splits
from beam_tfrec.pipelines.flags import (
    SourceParser,
    feature_names,
    first_label_of,
    parse_types,
    paths_of,
)
from beam_tfrec.pipelines.run import Command
from beam_tfrec.schemas.annotations.object_maps import BoxFormat, ObjectMap, parse_mapped
from beam_tfrec.schemas.annotations.side_files import SideFormat, parse_side_file
from beam_tfrec.schemas.columns import root_and_pattern
from beam_tfrec.schemas.faults import Reason
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.layouts.table import TableLayout
from beam_tfrec.transforms.sources import read_sidecar
from beam_tfrec.transforms.sources.join_files import JoinedFiles, JoinFiles
from beam_tfrec.transforms.sources.listing import ListFiles
from beam_tfrec.transforms.sources.read_samples import SourceSamples

AUTO = "auto"
FEATURES = ("boxes", "masks", "polygons")
MAPPED_FEATURES = ("boxes",)
FORMATS = (AUTO, *(known.value for known in SideFormat))


@dataclass(frozen=True)
class SideConfig(ImagesConfig):
    """A whole conversion of images with an annotation file each; a subclass adds the format.

    Attributes:
        annotations: URI of the folder of annotation files per split, or a glob of them.
        allow_unannotated: an image without an annotation file is a sample without objects.
    """

    annotations: Mapping[str, str]
    allow_unannotated: bool = field(default=False, kw_only=True)
    layout: Layout = field(default_factory=lambda: DetectionLayout(first_label=1), kw_only=True)

    join_by = ""
    """Field of annotation files that names the image; empty if the two share a name."""

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        check_same_splits(images=self.images, annotations=self.annotations)
        super().__post_init__()

    @property
    def side_names(self) -> read_sidecar.SideNames:
        """The rule that pairs images with annotation files."""
        raise NotImplementedError

    @property
    def read(self) -> Callable[[bytes | None], read_sidecar.SideSample | Reason]:
        """The parser of an annotation file, or of None for an image without one."""
        raise NotImplementedError

    @property
    def skip_imageless(self) -> Mapping[str, Sequence[str]]:
        """By split: globs of files that are rejected without an image; others are skipped."""
        return {}

    @property
    def annotation_roots(self) -> dict[str, str]:
        """URI per name of the roots of annotation files."""
        return {
            f"{split}/annotations": root_and_pattern(uri)[0]
            for split, uri in self.annotations.items()
        }

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URI per root name of every folder that is listed: its listing identifies the source."""
        return {**self.roots, **self.annotation_roots}

    @property
    def globs(self) -> dict[str, str]:
        """Globs of the sources, by root name."""
        found = ((split, root_and_pattern(uri)[1]) for split, uri in self.annotations.items())
        return {f"{split}/annotations": glob for split, glob in found if glob}

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from joined files."""
        names = self.side_names
        list_files = ListFiles(self.listed_roots, self.access, self.in_order, names.reads)
        listed = root | "ListFiles" >> list_files
        files = listed.pieces | "NameFiles" >> beam.FlatMap(names).with_output_types(JoinedFiles)
        texts = read_sidecar.ReadTexts(self.annotation_roots, self.access)
        if self.join_by:  # read files twice, so that the join holds names only
            name = beam.Map(read_sidecar.name_by_field, self.join_by).with_output_types(JoinedFiles)
            files = files | "ReadNames" >> texts | "NameByField" >> name
        of_lists = root | "Lists" >> beam.Create(sorted(names.lists))
        named = of_lists | "ListNames" >> beam.FlatMap(names.listed)
        joined = (files, named) | "JoinFiles" >> JoinFiles()
        reader = read_sidecar.SideReader(
            self.splitting,
            self.read,
            self.allow_unannotated,
            self.join_by,
            self.skip_imageless,
            names.masks,
        )
        read = joined | "ReadTexts" >> texts | "ReadSidecar" >> self.samples_step(reader)
        return read._replace(root_tallies=listed.root_tallies)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        unannotated = "keep" if self.allow_unannotated else "reject"
        return {**super().options(), "unannotated": unannotated}


@dataclass(frozen=True)
class SidecarConfig(SideConfig):
    """A whole conversion of images with a JSON file each.

    Attributes:
        format: format of the JSON files, or a map of their objects; None to detect LabelMe's and
            SA-1B's.
        join_by: field of JSON files that names the image, as keys with dots; empty if the two files
            share a name.
    """

    format: SideFormat | ObjectMap | None = None
    join_by: str = ""

    split_fields: ClassVar[None] = None  # only the JSON files show their fields

    @property
    def side_names(self) -> read_sidecar.SideNames:
        """The rule that pairs images with JSON files."""
        return read_sidecar.SideNames(self.globs, whole=bool(self.join_by))

    @property
    def read(self) -> Callable[[bytes | None], read_sidecar.SideSample | Reason]:
        """The parser of a JSON file."""
        if isinstance(self.layout, TableLayout):
            return functools.partial(read_sidecar.read_values, types=self.layout.types)
        return reader_of_objects(self.layout, self.format)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        known = self.format.value if self.format else AUTO
        form = "flat" if isinstance(self.layout, TableLayout) else known
        return super().options() | {"format": form, "join_by": self.join_by}


def reader_of_objects(
    layout: Layout, format: SideFormat | ObjectMap | None
) -> Callable[[bytes | None], read_sidecar.SideSample | Reason]:
    """Return the parser of a JSON file's objects; it looks at each file if no format is given."""
    if isinstance(format, ObjectMap):
        parse = functools.partial(parse_mapped, objects=format)
    else:
        parse = functools.partial(parse_side_file, format=format)
    return functools.partial(
        read_sidecar.read_objects, parse=parse, segmentations=layout.reads_segmentations
    )


def add_side_flags(parser: SourceParser, kind: str, features: str) -> tuple[FlagGroup, FlagGroup]:
    """Add the flags of images with an annotation file each.

    Args:
        parser: the command's parser.
        kind: kind of the files, for help texts.
        features: help of the features.

    Returns:
        The groups of sources and of records, for more flags.
    """
    annotations = f"folder of {kind} files per split, or a glob; ** matches any number of folders"
    group = parser.add_sources(
        images=("DIR", "folder of images or data set per split"),
        annotations=("DIR|GLOB", annotations),
    )
    unannotated = f"keep images without one of these {kind} files (default: reject them)"
    group.switch("--allow_unannotated", unannotated, rare=True)
    parser.add_size_flag(group)
    records = parser.group("records (docs/layouts.md)")
    records.text("--features", f"parts of objects to write: {features}", "NAME,NAME")
    parser.add_class_flags("default 1")
    parser.add_drop_flag()
    return group, records


def add_flags(parser: SourceParser) -> None:
    """Add the flags of the source and its layouts."""
    features = f"{', '.join(FEATURES)} (default boxes)"
    group, records = add_side_flags(parser, "JSON", features)
    formats = "format of the JSON files: LabelMe's, SA-1B's, or auto to look at each (default auto)"
    group.choice("--format", formats, FORMATS)
    add_object_flags(group)
    join = "field that names the image, such as image.file_name (default: files share a name)"
    group.text("--join_by", join, "FIELD", rare=True)
    add_fields_flag(records, "fields to write as features, such as a.b=int64", "objects")


def add_fields_flag(group: FlagGroup, fields: str, otherwise: str) -> None:
    """Add the flag of fields to write; `fields` says of what, `otherwise` what is the default."""
    types = "int64, float or bytes; add [] for lists"
    group.several("--fields", f"{fields}: {types} (default: write {otherwise})", "PATH=TYPE,...")


def add_object_flags(group: FlagGroup) -> None:
    """Add the flags that describe objects in JSON of any other format."""
    path = "write the boxes of other JSON: path of its list of objects, such as annotations"
    group.text("--objects", f"{path} (default: by --format)", "PATH", rare=True)
    keys = "with --objects, an object's keys of box and class (default bbox,category)"
    group.text("--object_keys", keys, "BOX,CLASS", rare=True)
    numbers = "with --objects, numbers of a box in px, or with rel_ as fractions (default xywh)"
    group.choice("--box_format", numbers, BoxFormat, rare=True)


def format_of(flags: argparse.Namespace) -> SideFormat | ObjectMap | None:
    """Return the format of JSON that the flags name; None to detect it.

    Raises:
        ValueError: when flags exclude each other, or keys are not a pair.
    """
    if not flags.objects:
        refuse_flags(flags, ("object_keys", "box_format"), "with objects", "add it")
        return None if flags.format in (None, AUTO) else SideFormat(flags.format)
    refuse_flags(flags, ("format",), "without objects")
    box, _, label = (flags.object_keys or "bbox,category").partition(",")
    if not (box and label) or "," in label:
        raise ValueError(f"object_keys must be BOX,CLASS, got {flags.object_keys!r}: give two keys")
    return ObjectMap(flags.objects, box, label, flags.box_format or BoxFormat.XYWH)


def layout_of(flags: argparse.Namespace) -> Layout:
    """Return the layout that the flags ask for.

    Raises:
        ValueError: when a feature is unknown, or flags exclude each other.
    """
    if not flags.fields:
        return detection_of(flags, MAPPED_FEATURES if flags.objects else FEATURES)
    unused = "features", "label_file", "first_label", "max_dropped", "on_size_mismatch", "format"
    return fields_layout_of(flags, (*unused, "objects"))


def detection_of(flags: argparse.Namespace, known: Collection[str]) -> DetectionLayout:
    """Return the layout of objects that the flags ask for.

    Args:
        flags: as parsed.
        known: features that the source may have.

    Raises:
        ValueError: when a feature is unknown.
    """
    features = feature_names(flags.features)
    if unknown := [name for name in features or () if name not in known]:
        raise ValueError(f"features must be of {', '.join(known)}, got {unknown[0]!r}: omit it")
    first_label = first_label_of(flags, 1)
    return config_of(DetectionLayout, flags, features=features, first_label=first_label)


def fields_layout_of(flags: argparse.Namespace, unused: Sequence[str]) -> TableLayout:
    """Return the layout of --fields.

    Args:
        flags: as parsed.
        unused: names of flags that have no effect on it.

    Raises:
        ValueError: when such a flag is given, or a path has an empty key.
    """
    refuse_flags(flags, unused, "without fields")
    types = parse_types(flags.fields)
    if empty := [path for path in types if not all(path.split("."))]:
        raise ValueError(f"fields must have no empty key, got {empty[0]!r}: remove it")
    return TableLayout(types, with_image=True)


def refuse_flags(
    flags: argparse.Namespace, names: Sequence[str], comes: str, remedy: str = "leave it out"
) -> None:
    """Refuse given flags that have no effect, with words such as `without fields`."""
    for name in names:
        if (given := getattr(flags, name)) not in (None, []):
            got = getattr(given, "value", given)
            raise ValueError(f"{name} must come {comes}, got {got}: {remedy}")


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    return {
        **paths_of(flags, "images", "annotations"),
        "format": format_of(flags),
        "layout": layout_of(flags),
    }


_EXAMPLE = "--images photos --annotations labels"
run = Command("sidecar", SidecarConfig, add_flags, fields_of, _EXAMPLE)

if __name__ == "__main__":
    main(run.name)
