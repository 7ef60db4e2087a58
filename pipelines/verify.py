"""Verify data sets and any TFRecord files: `python -m pipelines.verify --help`.

Neither Beam nor TensorFlow is imported.
"""

import argparse
import os
import posixpath
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from pipelines.command import guarded, say
from pipelines.flags import FlagParser, add_reading_flags, not_empty, parse_several_per_split
from schemas.faults import EXIT_DAMAGE
from schemas.findings import Findings, Verified
from schemas.inferred import InferredSchema
from schemas.manifest import MANIFEST_NAME, PLAN_NAME
from transforms.quantities import counted, megabytes
from transforms.storage import Access, check_uri, join_uri, open_storage
from transforms.verify_files import FileReport, schema_findings, verify_file

_PROGRAM = "beam-tfrec verify"
_SUFFIXES = (".tfrec", ".tfrecord", ".tfrecords")


@dataclass(frozen=True)
class VerifyConfig:
    """What is to be verified.

    Attributes:
        paths: data sets, folders of TFRecord files, and such files.
        deep: read remote shards too, compare SHA-256, decode the images of foreign files.
        sources: roots of source files by split, `""` for every split; empty to hash none.
        workers: shards or files at once.
        access: how stores are reached.
    """

    paths: tuple[str, ...]
    deep: bool = False
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    workers: int = 1
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        """Refuse what could not be done."""
        if self.workers < 1:
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
        default=_cores(),
        metavar="N",
        help="shards or files looked at at once, by a thread each (default: a core each)",
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
        access=Access(flags.anonymous, flags.billing_project),
    )


def run(argv: Sequence[str]) -> None:
    """Verify, print what was found, and end with exit code 7 where that is damage."""
    if verify(config_of(parser().parse_args(argv))):
        sys.exit(EXIT_DAMAGE)


def verify(config: VerifyConfig) -> bool:
    """Verify and print; return whether anything is wrong."""
    began = time.perf_counter()
    found = Verified(Findings())
    data_sets, files = find_paths(config, found.findings)
    if config.sources and len(data_sets) != 1:
        raise ValueError(
            f"sources must come with one data set, got {len(data_sets)}: give them apart"
        )
    for root in data_sets:
        _add(found, _verify_data_set(root, config))
    if files:
        _add(found, _verify_files(files, config))
    seconds = time.perf_counter() - began
    for line in (*found.findings.lines(), *found.notes, summary(found, seconds)):
        say(line, sys.stdout)
    return bool(found.findings)


def find_paths(config: VerifyConfig, findings: Findings) -> tuple[list[str], list[str]]:
    """Return the data sets and the TFRecord files among the paths.

    Findings are a manifest that a plan is without, and what a folder calls TFRecords and nobody can
    read, such as a dangling link.

    Raises:
        RuntimeError: `E-ARG` where a path is nothing, or a folder without either.
    """
    data_sets: list[str] = []
    files: list[str] = []
    for path in config.paths:
        if is_record_file(path):
            files.append(path)
            continue
        storage = open_storage(path, config.access)
        if storage.stat(MANIFEST_NAME) is not None:
            data_sets.append(path)
            continue
        records = [e for e in storage.list(recursive=False) if is_record_file(e.name)]
        if storage.stat(PLAN_NAME) is not None:
            what = f"is not there, and {PLAN_NAME} is: the data set is not complete"
            remedy = "run its command again, or restore it from a copy"
            findings.add("E-VER-MISSING", join_uri(path, MANIFEST_NAME), what, remedy)
        elif not records:
            files.append(path)  # of another name; if it is no file, its reader says so
        for entry in sorted(records, key=lambda entry: entry.name):
            where = join_uri(path, entry.name)
            if entry.kind == "file":
                files.append(where)
            else:
                remedy = "mend or rename it, or take it out of the folder"
                findings.add("E-VER-MISSING", where, f"is a {entry.kind}, and not read", remedy)
    return data_sets, files


def is_record_file(name: str) -> bool:
    """Return whether a file is called like TFRecords: those of TFDS end in `-00000-of-00016`.

    >>> is_record_file("a.tfrecord-00000-of-00002"), is_record_file("out")
    (True, False)
    """
    stem = posixpath.basename(name).removesuffix(".gz")
    return any(stem.endswith(suffix) or f"{suffix}-" in stem for suffix in _SUFFIXES)


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
    from transforms.verify_data_set import find_manifest, verify_data_set  # pyarrow takes 0.2 s
    from transforms.verify_shard import verify_shard
    from transforms.verify_sources import check_sources, verify_sources

    manifest = find_manifest(open_storage(root, config.access), Findings())
    if manifest is not None and config.sources:
        check_sources(manifest, config.sources)
    with ThreadPoolExecutor(config.workers) as pool:
        found = verify_data_set(
            root,
            config.access,
            lambda tasks, rules: pool.map(partial(verify_shard, rules=rules), tasks),
            deep=config.deep,
        )
        if manifest is not None and config.sources:
            sources = verify_sources(root, manifest, config.sources, config.access, pool.map)
            found.findings.extend(sources.findings)
            found.notes += (f"{counted(sources.files, 'source file')} compared with the index",)
            found.bytes += sources.bytes
    return found


def _verify_files(files: Sequence[str], config: VerifyConfig) -> Verified:
    found, schema = Verified(Findings()), InferredSchema()
    verify_one = partial(verify_file, access=config.access, deep=config.deep)
    with ThreadPoolExecutor(config.workers) as pool:
        for uri, report in zip(files, pool.map(verify_one, files), strict=True):
            found.findings.extend(report.findings)
            found.files += 1
            found.records += report.records
            found.bytes += report.bytes
            found.notes += tuple(_file_notes(uri, report))
            schema.extend(report.schema)
    found.findings.extend(schema_findings(schema))
    found.notes += tuple(schema_lines(schema))
    return found


def schema_lines(schema: InferredSchema) -> Iterator[str]:
    """Yield what records turned out to hold."""
    if schema.records:
        yield f"features of {counted(schema.records, 'Example')}:"
        yield from (f"  {line}" for line in schema.lines())
    if schema.others and schema.first_other:
        file, number, offset = schema.first_other
        first = f"the first is record {number} of {file} at byte {offset}"
        yield f"{counted(schema.others, 'record')} of other bytes than Examples: {first}"


def _file_notes(uri: str, report: FileReport) -> Iterator[str]:
    if report.compression:
        yield f"{uri}: {report.compression}; readers must be told so"
    if report.too_large:
        yield f"{uri}: {counted(report.too_large, 'record')} too large to be looked into"


def _add(found: Verified, other: Verified) -> None:
    found.findings.extend(other.findings)
    found.files += other.files
    found.records += other.records
    found.bytes += other.bytes
    found.notes += other.notes


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    """Run the command line."""
    sys.exit(guarded(run, sys.argv[1:], lambda: "nothing was changed; run again"))


if __name__ == "__main__":
    main()
