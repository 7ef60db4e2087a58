"""Records of TFRecord files or data sets to sharded .tfrec: `beam-tfrec records --help`."""

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

import apache_beam as beam

from beam_tfrec.pipelines.cli import config_of, main, parse_several_per_split
from beam_tfrec.pipelines.flags import SourceParser, feature_names
from beam_tfrec.pipelines.run import Command
from beam_tfrec.pipelines.staging import StagingConfig
from beam_tfrec.schemas.columns import root_and_pattern
from beam_tfrec.schemas.layouts.records import RecordsLayout, RecordType
from beam_tfrec.schemas.samples import records_root
from beam_tfrec.schemas.splits import STRATIFIED
from beam_tfrec.transforms.records import choose_records, read_records
from beam_tfrec.transforms.sources.listing import ListFiles
from beam_tfrec.transforms.sources.read_samples import SourceSamples
from beam_tfrec.transforms.storage import split_uri
from beam_tfrec.transforms.walk_frames import is_record_file

_MAX_SOURCES = 500  # of a split: each is listed alone, and numbered in 9 bits of a position


@dataclass(frozen=True)
class RecordsConfig(StagingConfig):
    """A whole data set of copied records.

    Attributes:
        records: per split URIs of data sets, and of folders, files and globs of TFRecord files.
        key_feature: feature with the records' keys; empty for those of the index, or else for
            file name and number.
        choice: which records to copy.
        on_duplicate: what to do with records of one split that have the same key.
    """

    records: Mapping[str, Sequence[str]]
    key_feature: str = ""
    choice: choose_records.Choice = choose_records.EVERY_RECORD
    on_duplicate: choose_records.OnDuplicate = choose_records.OnDuplicate.STOP
    layout: RecordsLayout = field(default_factory=RecordsLayout, kw_only=True)

    source_flag: ClassVar[str] = "--records"
    takes_since: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse a glob that a shell has expanded, and options that the records cannot have."""
        if (most := max(map(len, self.records.values()), default=0)) > _MAX_SOURCES:
            what = f"have at most {_MAX_SOURCES} sources per split, got {most}"
            raise ValueError(f"records must {what}: give a folder, or a glob in quotes")
        if not self.splitting.is_given and "train" not in self.records:
            what = f"split_by divides all splits of a data set, got {' and '.join(self.records)}"
            raise ValueError(f"{what}: give it without SPLIT=")
        if self.layout.is_opaque:
            needs = {"key_feature": self.key_feature, "classes": ",".join(self.choice.classes)}
            if self.splitting.by == STRATIFIED:
                needs["split_by"] = STRATIFIED
            for option, value in (needs | self.splitting.fields).items():
                if value:
                    raise ValueError(f"{option} needs features, got {value!r}: leave it out")
        super().__post_init__()

    @property
    def sources(self) -> dict[str, read_records.RecordSource]:
        """The sources by root name."""
        return {
            records_root(split, number): read_records.RecordSource(
                split,
                number,
                *_root_and_pattern(uri),
                every_split=not self.splitting.is_given,
                prefix=f"{number}/" if len(uris) > 1 else "",
            )
            for split, uris in self.records.items()
            for number, uri in enumerate(uris)
        }

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URI per root name of every folder that is listed: its listing identifies the source."""
        return {name: source.uri for name, source in self.sources.items()}

    @property
    def globs(self) -> dict[str, str]:
        """Globs of the sources, by root name."""
        return {name: of.pattern for name, of in self.sources.items() if of.pattern}

    @property
    def shared_files(self) -> Sequence[str]:
        """URIs of files that identify the sources, of any split."""
        return [*super().shared_files, *self.choice.files]

    def check_since(self) -> None:
        """Refuse `since`, since records have other sources than those of earlier data sets."""
        raise ValueError("since must come without records, got both: give all sets with --records")

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from indexes and files."""
        choose_records.forget_keys()  # of an earlier run, since the files may have changed
        reader = read_records.RecordReader(
            self.splitting,
            self.sources,
            self.access,
            self.key_feature,
            self.choice,
            not self.layout.is_opaque,
            None if self.plan else self.staging,
        )
        select = functools.partial(read_records.select_files, reader=reader)
        planned = root | "ListRecords" >> ListFiles(self.listed_roots, self.access, select=select)
        read = planned.pieces | "ReadRecords" >> self.samples_step(reader)
        if self.choice.keys:
            warn = beam.FlatMap(choose_records.warn_of_keys, self.choice.keys, self.access)
            all_tallies = read.split_tallies | "AllTallies" >> beam.combiners.ToList()
            read = read._replace(split_tallies=all_tallies | "WarnOfKeys" >> warn)
        if self.on_duplicate is not choose_records.OnDuplicate.STOP:
            drop = choose_records.DropRepeated(self.on_duplicate, read.split_tallies)
            samples, tallies = read.samples | "DropRepeated" >> drop
            read = read._replace(samples=samples, split_tallies=tallies)
        return read._replace(root_tallies=planned.root_tallies)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        options = super().options() | self.choice.options()
        if self.key_feature:
            options["key_feature"] = self.key_feature
        if self.on_duplicate is not choose_records.OnDuplicate.STOP:
            options["on_duplicate"] = self.on_duplicate.value
        return options


def _root_and_pattern(uri: str) -> tuple[str, str]:
    """Return the folder to list, and the glob for names below it.

    >>> _root_and_pattern("gs://b/old/a.tfrecord"), _root_and_pattern("old/")
    (('gs://b/old', 'a.tfrecord'), ('old', ''))
    """
    folder, pattern = root_and_pattern(uri)
    if not pattern and is_record_file(uri):
        return split_uri(uri)
    return folder, pattern


def add_flags(parser: SourceParser) -> None:
    """Add the flags of the source."""
    records = "data set, or folder, file or quoted glob of TFRecord files, one or more per split"
    group = parser.add_sources("sources (docs/records.md)", records=("DIR|GLOB", records))
    kinds = "what records are: an Example or SequenceExample, or bytes that are not parsed"
    group.choice("--record_type", kinds, RecordType, "example")
    keys = "feature with the records' keys (default: keys of the data set, or FILE:NUMBER)"
    group.text("--key_feature", keys, "FEATURE")
    equal = "what to do with equal keys in a split: stop, or copy the first or last one"
    group.choice("--on_duplicate", equal, choose_records.OnDuplicate, "stop")
    group = parser.group("subset")
    group.text("--keys", "copy only the keys in this text file, one a line", "FILE")
    group.text("--drop_keys", "leave out the keys in this text file", "FILE")
    group.text("--classes", "copy only records with one of these classes", "NAME,...")
    group.text("--sample", "copy this share of the records, drawn by a hash of their keys", "P%")


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    return {
        "records": parse_several_per_split("records", flags.records, bare=flags.split),
        "layout": RecordsLayout(flags.record_type),
        "choice": config_of(
            choose_records.Choice,
            flags,
            classes=feature_names(flags.classes) or (),
            share=_share_of(flags.sample or "100%"),
        ),
    }


def _share_of(text: str) -> Fraction:
    """Return a percentage as a share.

    Raises:
        ValueError: when it is none.
    """
    try:
        return Fraction(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"sample must be a percentage such as 10%, got {text!r}") from None


_EXAMPLE = "--records train=old val=old --num_shards 64"
run = Command("records", RecordsConfig, add_flags, fields_of, _EXAMPLE, images=False)

if __name__ == "__main__":
    main(run.name)
