"""Verify data sets and any TFRecord files: `python -m pipelines.verify --help`.

Neither TensorFlow is imported nor Beam, but for `--runner`.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from pipelines.command import guarded, say
from pipelines.flags import (
    FlagParser,
    add_reading_flags,
    not_empty,
    parse_several_per_split,
    reading_access,
)
from schemas.faults import EXIT_DAMAGE
from schemas.findings import Findings, Verified
from transforms.gate import usable_cores
from transforms.quantities import counted, megabytes
from transforms.storage import Access, check_uri, open_storage
from transforms.verify.files import FilesFound, verify_file
from transforms.verify.paths import find_paths

_PROGRAM = "beam-tfrec verify"
RUNNER = "--runner"
"""Beam's flag that makes it a pipeline."""


@dataclass(frozen=True)
class VerifyConfig:
    """What is to be verified.

    Attributes:
        paths: data sets, folders of TFRecord files, and such files.
        deep: read remote shards too, compare SHA-256, decode the images of foreign files.
        sources: roots of source files by split, `""` for every split; empty to hash none.
        workers: shards or files at once, of this process; None for one a core.
        access: how stores are reached.
    """

    paths: tuple[str, ...]
    deep: bool = False
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    workers: int | None = None
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        """Refuse what could not be done."""
        if self.workers is not None and self.workers < 1:
            raise ValueError(
                f"workers must be at least 1, got {self.workers}: give a larger number"
            )
        for uri in (*self.paths, *(uri for given in self.sources.values() for uri in given)):
            check_uri(uri)


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


def verify_here(config: VerifyConfig) -> Verified:
    """Return what is wrong, found by threads of this process."""
    found = Verified(Findings())
    data_sets, files = find_paths(config.paths, config.access, found.findings)
    check_sources_given(config, data_sets)
    for root in data_sets:
        found.extend(_verify_data_set(root, config))
    if files:
        found.extend(_verify_files(files, config))
    return found


def check_sources_given(config: VerifyConfig, data_sets: Sequence[str]) -> None:
    """Refuse sources that could not be compared.

    Raises:
        ValueError: with the value and the remedy.
    """
    if not config.sources:
        return
    if len(data_sets) != 1:
        raise ValueError(
            f"sources must come with one data set, got {len(data_sets)}: give them apart"
        )
    from transforms.verify.data_set import find_manifest  # pyarrow takes 0.2 s
    from transforms.verify.sources import check_sources

    manifest = find_manifest(open_storage(data_sets[0], config.access), Findings())
    if manifest is not None:
        check_sources(manifest, config.sources, config.access)


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


def _verify_data_set(root: str, config: VerifyConfig) -> Verified:
    from transforms.verify.data_set import find_manifest, verify_data_set  # pyarrow takes 0.2 s
    from transforms.verify.shard import verify_shard
    from transforms.verify.sources import verify_sources

    with ThreadPoolExecutor(config.workers or usable_cores()) as pool:
        found = verify_data_set(
            root,
            config.access,
            lambda tasks, rules: pool.map(partial(verify_shard, rules=rules), tasks),
            deep=config.deep,
        )
        manifest = None
        if config.sources:
            manifest = find_manifest(open_storage(root, config.access), Findings())
        if manifest is not None:
            verify_sources(root, manifest, config.sources, config.access, pool.map).add_to(found)
    return found


def _verify_files(files: Sequence[str], config: VerifyConfig) -> Verified:
    found = FilesFound()
    verify_one = partial(verify_file, access=config.access, deep=config.deep)
    with ThreadPoolExecutor(config.workers or usable_cores()) as pool:
        for uri, report in zip(files, pool.map(verify_one, files), strict=True):
            found.add(uri, report)
    return found.verified()


def main() -> None:
    """Run the command line."""
    sys.exit(guarded(run, sys.argv[1:], lambda: "nothing was changed; run again"))


if __name__ == "__main__":
    main()
