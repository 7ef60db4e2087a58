"""Low- and high-resolution images to sharded .tfrec: `python -m pipelines.pairs --help`."""

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import apache_beam as beam

from pipelines.command import guarded
from pipelines.data_set import DataSetConfig, write_data_set
from pipelines.data_set_flags import add_data_set_flags, make_run
from pipelines.launch import RunConfig, execute
from pipelines.options import FlagParser, parse_flags, parse_per_split, shard_names_of
from schemas.layouts import Layout
from schemas.layouts.pairs import PairsLayout
from schemas.manifest import Manifest
from transforms.pipeline_spool import spool_for
from transforms.sources.join_files import JoinFiles, NamedFile, Sides
from transforms.sources.listed_files import ListFiles
from transforms.sources.read_folder import FOLDER, is_read
from transforms.sources.read_pairs import HIGH, LOW, PairNames, PairReader, pair_root
from transforms.sources.read_samples import ReadSamples, SourceSamples

_REMEDY = "check --low and --high, and what names of low images end in with --low_suffix"


@dataclass(frozen=True)
class PairsConfig(DataSetConfig):
    """A whole conversion of pairs.

    Attributes:
        low: URI of the folder of low-resolution images per split.
        high: URI of the folder of high-resolution images per split.
        low_suffix: what names of low images end in, before their extension.
    """

    low: Mapping[str, str]
    high: Mapping[str, str]
    low_suffix: str = ""
    layout: Layout = field(default_factory=PairsLayout, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        if set(self.low) != set(self.high):
            raise ValueError(
                f"low and high must name the same splits, got low {sorted(self.low)} and high"
                f" {sorted(self.high)}: give both as SPLIT=DIR"
            )
        for split, uri in self.low.items():
            if uri.rstrip("/") == self.high[split].rstrip("/"):
                raise ValueError(
                    f"low and high must be two folders, got {uri!r} for both, since each"
                    " image would be its own partner: give the folder of each"
                )
        super().__post_init__()
        if self.conversion.resize is not None:
            raise ValueError(
                f"resize must not be given for pairs, got {self.conversion.resize}: it would make"
                " both images one size; leave it out"
            )

    @property
    def given(self) -> tuple[str, ...]:
        """The splits that sources are given for."""
        return tuple(self.high)

    @property
    def split_fields(self) -> frozenset[str]:
        """Names of what `split_by` and `group_by` may ask of a sample."""
        return frozenset([FOLDER])

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        low = {pair_root(split, LOW): uri for split, uri in self.low.items()}
        return low | {pair_root(split, HIGH): uri for split, uri in self.high.items()}

    @property
    def root_places(self) -> tuple[frozenset[str], ...]:
        """Names of the roots of low images, and of high ones."""
        low, high = (frozenset(pair_root(s, side) for s in self.high) for side in (LOW, HIGH))
        return low, high

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        return {**super().options(), "low_suffix": self.low_suffix}


def read_sources(root: beam.Pipeline, config: PairsConfig) -> SourceSamples:
    """Build the part of the graph before plan and shards: samples from pairs of files."""
    listed = root | "ListFiles" >> ListFiles(config.roots, config.access, config.in_order, is_read)
    sides = Sides("--low", "--high", _REMEDY, allowed=config.budget.allowed)
    spool = spool_for(listed.files.pipeline, config.access.spool_dir)
    pairs = (
        listed.files
        | "NamePairs" >> beam.FlatMap(PairNames(config.low_suffix)).with_output_types(NamedFile)
        | "JoinFiles" >> JoinFiles(sides, spool)
    )
    read = pairs | "ReadPairs" >> ReadSamples(
        PairReader(config.splitting), config.source_files, config.exclude, config.access
    )
    return read._replace(tallies=listed.tallies)


def build(root: beam.Pipeline, config: PairsConfig) -> beam.PCollection[Manifest]:
    """Build the graph: pairs from two listings, samples from the pairs, one manifest."""
    return write_data_set(config, read_sources(root, config))


def parser() -> FlagParser:
    """Return the command's flags."""
    flags = FlagParser("beam-tfrec pairs", "Pairs of images to sharded .tfrec files.")
    group = flags.add_argument_group("sources")
    for side in (LOW, HIGH):
        group.add_argument(
            f"--{side}",
            nargs="+",
            action="extend",
            required=True,
            metavar="[SPLIT=]DIR",
            help=f"folder of the {side}-resolution images per split; the two of a pair have the"
            " same name below their folders, extensions aside (required)",
        )
    group.add_argument(
        "--split", default="train", help="split of a path without SPLIT= (default train)"
    )
    group.add_argument(
        "--low_suffix",
        metavar="TEXT",
        help="what names of low images end in before their extension, taken off where it is there,"
        " as in 0001x4.png (default: x and --scale; without --scale none)",
    )
    group.add_argument(
        "--scale",
        type=int,
        metavar="N",
        help="how many times as wide and high as its low image each high one is; others are"
        " rejected (default: any whole number, the same both ways)",
    )
    group.add_argument(
        "--tensors",
        action="store_true",
        help="write lr and hr as serialized TensorProtos of uint8 pixels, height x width x"
        " channels, for tf.io.parse_tensor (default: the image files' bytes)",
    )
    add_data_set_flags(flags)
    return flags


def configure(argv: Sequence[str]) -> tuple[RunConfig[PairsConfig], list[str]]:
    """Return the run that the arguments ask for, and the arguments that are Beam's.

    Raises:
        ValueError: with the value and the remedy.
    """
    flags, beam_args = parse_flags(parser(), argv)
    make_config = functools.partial(
        PairsConfig,
        low=parse_per_split("low", flags.low, bare=flags.split),
        high=parse_per_split("high", flags.high, bare=flags.split),
        low_suffix=_low_suffix_of(flags),
        layout=PairsLayout(flags.scale, flags.tensors),
        names=shard_names_of(flags),
    )
    return make_run(make_config, flags, argv, "pairs"), beam_args


def _low_suffix_of(flags: argparse.Namespace) -> str:
    """Return what names of low images end in, as asked for or as the scale has it."""
    if flags.low_suffix is not None:
        return flags.low_suffix
    return "" if flags.scale is None else f"x{flags.scale}"


def run(argv: Sequence[str]) -> None:
    """Convert as the arguments say; returns when the data set is committed."""
    run_config, beam_args = configure(argv)
    execute(run_config, build, beam_args, read_sources)


def main() -> None:
    """Run as a command: one line and an exit code for every fault."""
    sys.exit(guarded(run, sys.argv[1:]))


if __name__ == "__main__":
    main()
