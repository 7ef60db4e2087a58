"""Low- and high-resolution images to sharded .tfrec: `beam-tfrec pairs --help`."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import apache_beam as beam

from beam_tfrec.pipelines.cli import main
from beam_tfrec.pipelines.data_set import DataSetConfig, check_same_splits
from beam_tfrec.pipelines.flags import SourceParser, paths_of
from beam_tfrec.pipelines.run import Command
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.layouts.classification import PairsLayout
from beam_tfrec.transforms.sources.join_files import JoinedFiles, JoinFiles
from beam_tfrec.transforms.sources.listing import ListFiles
from beam_tfrec.transforms.sources.read_folder import FOLDER, HIGH, LOW, PairNames, PairReader
from beam_tfrec.transforms.sources.read_samples import SourceSamples


@dataclass(frozen=True)
class PairsConfig(DataSetConfig):
    """A whole conversion of pairs.

    Attributes:
        low: URI of the folder of low-resolution images per split.
        high: URI of the folder of high-resolution images per split.
        low_suffix: end of the names of low images, before the extension.
    """

    low: Mapping[str, str]
    high: Mapping[str, str]
    low_suffix: str = ""
    layout: Layout = field(default_factory=PairsLayout, kw_only=True)

    source_flag: ClassVar[str] = "--low"
    split_fields: ClassVar[frozenset[str]] = frozenset([FOLDER])

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        check_same_splits(low=self.low, high=self.high)
        for split, uri in self.low.items():
            if uri.rstrip("/") == self.high[split].rstrip("/"):
                raise ValueError(f"low and high must be two folders, got {uri!r}: give another")
        super().__post_init__()
        for option in ("resize", "buckets"):
            if getattr(self.conversion, option):
                raise ValueError(f"pairs take no resize and no buckets, got {option}: leave it out")

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        low = {f"{split}/{LOW}": uri for split, uri in self.low.items()}
        return low | {f"{split}/{HIGH}": uri for split, uri in self.high.items()}

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from pairs of files."""
        listed = root | "ListFiles" >> ListFiles(self.roots, self.access, self.in_order)
        name = beam.FlatMap(PairNames(self.low_suffix)).with_output_types(JoinedFiles)
        named = listed.pieces | "NamePairs" >> name
        pairs = (named,) | "JoinFiles" >> JoinFiles()
        read = pairs | "ReadPairs" >> self.samples_step(PairReader(self.splitting))
        return read._replace(root_tallies=listed.root_tallies)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        return {**super().options(), "low_suffix": self.low_suffix}


def add_flags(parser: SourceParser) -> None:
    """Add the flags of the source and its layout."""
    text = "images: a folder per split; names of a pair are the same without their extension"
    group = parser.add_sources(
        low=("DIR", f"low-resolution {text}"), high=("DIR", f"high-resolution {text}")
    )
    suffix = "end of the names of low images, as in 0001x4.png (default: x and --scale, if given)"
    group.add("--low_suffix", suffix, metavar="TEXT")
    scale = "high size divided by low size (default: any whole number, the same for both sides)"
    group.number("--scale", scale)
    tensors = "write lr and hr as TensorProtos of uint8 pixels (default: the files' bytes)"
    group.switch("--tensors", tensors)


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    suffix = "" if flags.scale is None else f"x{flags.scale}"
    return {
        **paths_of(flags, "low", "high"),
        "low_suffix": suffix if flags.low_suffix is None else flags.low_suffix,
        "layout": PairsLayout(flags.scale, flags.tensors),
    }


run = Command("pairs", PairsConfig, add_flags, fields_of, "--low low_res --high high_res")

if __name__ == "__main__":
    main(run.name)
