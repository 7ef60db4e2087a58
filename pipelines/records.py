"""Records of TFRecord files or data sets to sharded .tfrec: `beam-tfrec records --help`."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import apache_beam as beam

from beam_tfrec.pipelines.cli import FlagParser, main, parse_several_per_split
from beam_tfrec.pipelines.data_set import build as build
from beam_tfrec.pipelines.examples import StagingConfig
from beam_tfrec.pipelines.flags import add_sources
from beam_tfrec.pipelines.run import Command
from beam_tfrec.schemas.columns import root_and_pattern
from beam_tfrec.schemas.samples import records_root
from beam_tfrec.transforms.records.read_records import PlanRecords, RecordReader, RecordSource
from beam_tfrec.transforms.sources.read_samples import SourceSamples
from beam_tfrec.transforms.storage import split_uri
from beam_tfrec.transforms.walk_frames import is_record_file


@dataclass(frozen=True)
class RecordsConfig(StagingConfig):
    """A whole data set of copied records.

    Attributes:
        records: per split URIs of data sets, and of folders, files and globs of TFRecord files.
        key_feature: feature with the records' keys; empty for those of the index, or else for
            file name and number.
    """

    records: Mapping[str, Sequence[str]]
    key_feature: str = ""

    source_flag: ClassVar[str] = "--records"

    @property
    def given(self) -> tuple[str, ...]:
        """The splits that sources are given for."""
        return tuple(self.records)

    @property
    def sources(self) -> dict[str, RecordSource]:
        """The sources by root name."""
        return {
            records_root(split, number): RecordSource(
                split, number, *_root_and_pattern(uri), every_split=not self.splitting.is_given
            )
            for split, uris in self.records.items()
            for number, uri in enumerate(uris)
        }

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URI per root name of every folder that is listed: its listing identifies the source."""
        return {name: source.uri for name, source in self.sources.items()}

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from indexes and files."""
        planned = root | "PlanRecords" >> PlanRecords(self.sources, self.splitting, self.access)
        staging = None if self.plan else self.staging
        reader = RecordReader(self.splitting, self.sources, self.access, self.key_feature, staging)
        read = planned.pieces | "ReadRecords" >> self.read_samples(reader)
        return read._replace(tallies=planned.tallies)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        return super().options() | ({"key_feature": self.key_feature} if self.key_feature else {})


def _root_and_pattern(uri: str) -> tuple[str, str]:
    """Return the folder to list, and the glob for names below it.

    >>> _root_and_pattern("gs://b/old/a.tfrecord"), _root_and_pattern("old/")
    (('gs://b/old', 'a.tfrecord'), ('old', ''))
    """
    folder, pattern = root_and_pattern(uri)
    if not pattern and is_record_file(uri):
        return split_uri(uri)
    return folder, pattern


def add_flags(parser: FlagParser) -> None:
    """Add the flags of the source."""
    records = "data set, or folder, file or quoted glob of TFRecord files, one or more per split"
    group = add_sources(parser, "sources (docs/records.md)", records=("DIR|GLOB", records))
    keys = "feature with the records' keys (default: keys of the data set, or FILE:NUMBER)"
    group.text("--key_feature", keys, "FEATURE")


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    return {
        "records": parse_several_per_split("records", flags.records, bare=flags.split),
        "key_feature": flags.key_feature or "",
    }


COMMAND = Command(
    "records",
    RecordsConfig,
    add_flags,
    fields_of,
    "--records train=old val=old --num_shards 64",
    images=False,
)

run = COMMAND.run  # `cli.run_command` calls it by name

if __name__ == "__main__":
    main(COMMAND.name)
