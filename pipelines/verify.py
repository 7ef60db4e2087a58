"""Verify data sets and any TFRecord files: `python -m pipelines.verify --help`.

Neither TensorFlow is imported nor Beam, but for `--runner`.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from pipelines.command import guarded, say
from pipelines.flags import (
    FlagParser,
    add_reading_flags,
    not_empty,
    parse_several_per_split,
    reading_access,
)
from schemas.faults import EXIT_DAMAGE, Verified
from schemas.shown_values import counted, megabytes
from transforms.verify import VerifyConfig, verify_here

_PROGRAM = "beam-tfrec verify"
RUNNER = "--runner"
"""Beam's flag that makes it a pipeline."""


def parser() -> FlagParser:
    """Return the parser of the command line."""
    found = FlagParser(
        _PROGRAM,
        "Verify data sets of beam-tfrec against their manifests, and any TFRecord files against"
        " themselves: checksums, records, images. Exit code 0: all is well; 7: damage, of which"
        " each line names file, record, key and byte.",
    )
    found.add_argument(
        "paths",
        nargs="+",
        type=not_empty,
        metavar="PATH",
        help="a data set (a folder or URI with a manifest.json), a TFRecord file of any origin, or"
        " a folder of such files",
    )
    found.add_argument(
        "--deep",
        action="store_true",
        help="read every byte of data sets that are not local too, where else sizes and checksums"
        " are compared as the store lists them; compare SHA-256 of shards and images, beyond"
        " CRC-32C; decode the pixels of images in other files (default: none of it)",
    )
    found.add_argument(
        "--sources",
        nargs="+",
        default=[],
        metavar="[SPLIT=]DIR",
        help="image roots, of a split or of all: hash the source files and compare them with the"
        " index (default: do not)",
    )
    found.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="shards or files looked at at once, by a thread each (default: a core each)",
    )
    found.add_argument(
        RUNNER,
        metavar="NAME",
        help="verify as a pipeline on this runner of Beam, such as DataflowRunner, FlinkRunner or"
        " PrismRunner, with Beam's own flags beside it; workers elsewhere hand the result back in"
        " --temp_location (default: in this process, without Beam)",
    )
    add_reading_flags(found)
    return found


def config_of(flags: argparse.Namespace) -> VerifyConfig:
    """Return what the flags ask for."""
    return VerifyConfig(
        paths=tuple(flags.paths),
        deep=flags.deep,
        sources=parse_several_per_split("sources", flags.sources),
        workers=flags.workers,
        access=reading_access(flags),
    )


def run(argv: Sequence[str]) -> None:
    """Verify, print what was found, and end with exit code 7 where that is damage."""
    if any(argument.partition("=")[0] == RUNNER for argument in argv):
        from pipelines.verify_job import verify_elsewhere  # imports Beam

        is_wrong = verify_elsewhere(argv)
    else:
        is_wrong = verify(config_of(parser().parse_args(argv)))
    if is_wrong:
        sys.exit(EXIT_DAMAGE)


def verify(config: VerifyConfig) -> bool:
    """Verify and print; return whether anything is wrong."""
    began = time.perf_counter()
    return say_found(verify_here(config), time.perf_counter() - began)


def say_found(found: Verified, seconds: float) -> bool:
    """Print what was found; return whether anything is wrong."""
    for line in (*found.findings.lines(), *found.notes, summary(found, seconds)):
        say(line, sys.stdout)
    return bool(found.findings)


def summary(found: Verified, seconds: float) -> str:
    """Return the last line: what was looked at, how fast, and how much is wrong."""
    wrong = sum(found.findings.counts.values())
    rate = f" ({found.bytes / seconds / 1e9:.2f} GB/s)" if found.bytes else ""
    return (
        f"{counted(found.files, 'file')}, {counted(found.records, 'record')},"
        f" {megabytes(found.bytes)} read in {seconds:.1f} s{rate}:"
        f" {counted(wrong, 'finding') if wrong else 'all is well'}"
    )


def main() -> None:
    """Run the command line."""
    sys.exit(guarded(run, sys.argv[1:], lambda: "nothing was changed; run again"))


if __name__ == "__main__":
    main()
