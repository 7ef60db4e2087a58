"""Tar files of WebDataset or img2dataset to sharded .tfrec: `beam-tfrec webdataset --help`."""

import argparse
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import apache_beam as beam

from beam_tfrec.pipelines import sidecar
from beam_tfrec.pipelines.cli import main, parse_several_per_split
from beam_tfrec.pipelines.flags import SourceParser
from beam_tfrec.pipelines.folder import add_layout_flags
from beam_tfrec.pipelines.folder import layout_of as classified_layout_of
from beam_tfrec.pipelines.run import Command
from beam_tfrec.pipelines.staging import StagingConfig
from beam_tfrec.schemas.annotations.object_maps import ObjectMap
from beam_tfrec.schemas.annotations.side_files import SideFormat
from beam_tfrec.schemas.columns import root_and_pattern
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.layouts.classification import ClassificationLayout
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.layouts.table import TableLayout
from beam_tfrec.schemas.samples import STAGED_IMAGES, TAR
from beam_tfrec.transforms.sources import read_tar
from beam_tfrec.transforms.sources.listing import ListFiles
from beam_tfrec.transforms.sources.read_samples import SourceSamples
from beam_tfrec.transforms.storage import split_uri

_RANGE = re.compile(r"\{([0-9]{1,6})\.\.([0-9]{1,6})\}")


@dataclass(frozen=True)
class WebdatasetConfig(StagingConfig):
    """A whole conversion of tar files.

    Attributes:
        shards: URIs of tar files and of folders of them, per split; with globs or braces.
        format: format of the objects in .json members, or a map of them; None to detect LabelMe's
            and SA-1B's.
        layout: a `TableLayout` for fields of the members, a `DetectionLayout` for objects, else a
            layout of classes.
    """

    shards: Mapping[str, Sequence[str]]
    format: SideFormat | ObjectMap | None = None
    layout: Layout = field(default_factory=ClassificationLayout, kw_only=True)

    source_flag: ClassVar[str] = "--shards"
    staged_root: ClassVar[str] = STAGED_IMAGES

    @functools.cached_property
    def sources(self) -> dict[str, read_tar.TarSource]:
        """The folders of tar files by root name."""
        found: dict[str, read_tar.TarSource] = {}
        for split, uris in self.shards.items():
            folders: dict[str, set[str]] = {}
            for uri in (each for given in uris for each in expand_braces(given)):
                folder, pattern = root_and_pattern(uri)
                if not pattern and uri.lower().endswith((TAR, *read_tar.DECOMPRESSORS)):
                    folder, pattern = split_uri(uri)
                folders.setdefault(folder, set()).add(pattern)
            for number, (folder, patterns) in enumerate(folders.items()):
                source = read_tar.TarSource(split, number, folder, frozenset(patterns))
                found[f"{split}/tars/{number}"] = source
        return found

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URI per root name of every folder that is listed: its listing identifies the source."""
        return {name: source.uri for name, source in self.sources.items()}

    @property
    def globs(self) -> dict[str, str]:
        """Names and globs that choose files in listed folders, by root name."""
        return {name: " ".join(sorted(s.patterns)) for name, s in self.sources.items()}

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from headers of tar files."""
        types = self.layout.types if isinstance(self.layout, TableLayout) else None
        has_objects = isinstance(self.layout, DetectionLayout)
        read = sidecar.reader_of_objects(self.layout, self.format) if has_objects else None
        staging = None if self.plan else self.staging
        reader = read_tar.TarReader(
            self.splitting, self.sources, self.access, types, self.label_file, read, staging
        )
        select = functools.partial(read_tar.select_tars, sources=self.sources)
        planned = root | "ListTars" >> ListFiles(self.listed_roots, self.access, select=select)
        read = planned.pieces | "ReadTars" >> self.samples_step(reader)
        return read._replace(root_tallies=planned.root_tallies)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        format = {"format": self.format.value if self.format else sidecar.AUTO}
        is_read = isinstance(self.layout, DetectionLayout)
        return super().options() | (format if is_read else {})


def expand_braces(uri: str) -> list[str]:
    """Return the names that a shell would make of ranges in braces.

    >>> expand_braces("a/{008..010}.tar"), expand_braces("{a,b}.tar")
    (['a/008.tar', 'a/009.tar', 'a/010.tar'], ['{a,b}.tar'])
    >>> expand_braces("{9..10}-{0..1}")
    ['9-0', '9-1', '10-0', '10-1']

    Raises:
        ValueError: when a range does not ascend, or the compression of a file is not supported.
    """
    if uri.lower().endswith(read_tar.REFUSED):
        supported = ", ".join((TAR, *read_tar.DECOMPRESSORS))
        raise ValueError(f"shards must be {supported} files, got {uri!r}: decompress them")
    found = _RANGE.search(uri)
    if found is None:
        return [uri]
    first, last = found.groups()
    if int(first) > int(last):
        raise ValueError(f"shards must have ranges that ascend, got {found[0]}: correct it")
    numbers = (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
    before, after = uri[: found.start()], uri[found.end() :]
    return [name for number in numbers for name in expand_braces(f"{before}{number}{after}")]


def add_flags(parser: SourceParser) -> None:
    """Add the flags of the source and its layouts."""
    shards = "tar files per split: names with {000..146}, folders or quoted globs, one or more"
    parser.add_sources("sources (docs/webdataset.md)", shards=("FILE|GLOB|DIR", shards))
    group = add_layout_flags(parser, None)
    fields = "members and fields of .json to write as features, such as txt=bytes,a.b=int64"
    sidecar.add_fields_flag(group, fields, ".cls")
    objects = "write the objects of .json: LabelMe's, SA-1B's, or auto to look at each"
    group.choice("--format", objects, sidecar.FORMATS, rare=True)
    sidecar.add_object_flags(group)
    parts = f"with --format, parts of objects: {', '.join(sidecar.FEATURES)} (default boxes)"
    group.text("--features", parts, "NAME,NAME", rare=True)
    parser.add_size_flag(group)
    parser.add_drop_flag()


def layout_of(flags: argparse.Namespace) -> Layout:
    """Return the layout that the flags ask for.

    Raises:
        ValueError: when flags exclude each other.
    """
    if flags.format or flags.objects:
        sidecar.refuse_flags(flags, ("layout", "dtype", "fields"), "without format and objects")
        known = sidecar.MAPPED_FEATURES if flags.objects else sidecar.FEATURES
        return sidecar.detection_of(flags, known)
    objects_only = "features", "on_size_mismatch", "max_dropped"
    remedy = "add --format auto or --objects, or leave it out"
    sidecar.refuse_flags(flags, objects_only, "with format or objects", remedy)
    unused = ("layout", "dtype", "label_file", "first_label")
    return sidecar.fields_layout_of(flags, unused) if flags.fields else classified_layout_of(flags)


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    return {
        "shards": parse_several_per_split("shards", flags.shards, bare=flags.split),
        "format": sidecar.format_of(flags),
        "layout": layout_of(flags),
    }


_EXAMPLE = "--shards train='data/train-{000..146}.tar' val='data/val-*.tar'"
run = Command("webdataset", WebdatasetConfig, add_flags, fields_of, _EXAMPLE)

if __name__ == "__main__":
    main(run.name)
