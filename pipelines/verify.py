"""Verify data sets and any TFRecord files: `beam-tfrec verify --help`.

This module does not import TensorFlow, and imports Beam only for `--runner`.
"""

import secrets
import sys
import tempfile
import time
from collections.abc import Sequence

import msgspec

from beam_tfrec.pipelines import cli
from beam_tfrec.schemas.faults import EXIT_DAMAGE, bytes_text, counted
from beam_tfrec.transforms.storage import is_local, join_uri, open_storage, read_uri
from beam_tfrec.transforms.verify import Findings, VerifyConfig, find_sets_and_files, verify_here


def parser() -> cli.FlagParser:
    """Return the parser of the command line."""
    what = "Checksums, records and images are checked; data sets against their manifests, too."
    codes = "Exit code 0: no damage; 7: damage, a line per finding with file, record, key and byte."
    found = cli.FlagParser("verify", f"{what} {codes}")
    found.path("paths", cli.SETS_OR_FILES, nargs="+")
    group = found.group("what to compare")
    deep = "read every byte of remote data sets too, and compare the SHA-256 of shards and images;"
    group.switch("--deep", f"{deep} decode images in other files")
    sources = "folder of images, for each split or for all: compare their hashes with the index"
    group.several("--sources", sources, "[SPLIT=]DIR")
    group.number("--workers", "shards or files to read at once (default: one per core)")
    runner = "run on this Beam runner, with Beam's own flags; workers leave the result in"
    unset = "default: run in this process, without Beam"
    group.text("--runner", f"{runner} --temp_location ({unset})", "NAME")
    cli.add_reading_flags(found)
    return found


def configure(argv: Sequence[str]) -> VerifyConfig:
    """Return the configuration that the flags ask for."""
    flags = parser().parse_args(argv)
    sources = cli.parse_several_per_split("sources", flags.sources)
    uris = [*flags.paths, *(uri for given in sources.values() for uri in given)]
    given = {"paths": tuple(flags.paths), "sources": sources}
    return cli.config_of(VerifyConfig, flags, **given, access=cli.reading_access(flags, uris))


def run(argv: Sequence[str]) -> None:
    """Verify, print the findings, and exit with 7 if there is damage."""
    is_elsewhere = any(argument.partition("=")[0] == "--runner" for argument in argv)
    if verify_elsewhere(argv) if is_elsewhere else verify(configure(argv)):
        sys.exit(EXIT_DAMAGE)


def verify(config: VerifyConfig) -> bool:
    """Verify and print the findings; return whether there are any."""
    began = time.perf_counter()
    return say_found(verify_here(config), time.perf_counter() - began)


def say_found(found: Findings, seconds: float) -> bool:
    """Print findings, notes and speed; return whether there are findings."""
    for line in (*found.lines(), *found.notes):
        cli.say(line)
    wrong = sum(found.counts.values())
    rate = f" ({found.bytes / seconds / 1e9:.2f} GB/s)" if found.bytes else ""
    read = f"{counted(found.files, 'file')}, {counted(found.records, 'record')}"
    read += f", {bytes_text(found.bytes)} read in {seconds:.1f} s{rate}"
    cli.say(f"{read}: {counted(wrong, 'finding') if wrong else 'all is well'}")
    return wrong > 0


def verify_elsewhere(argv: Sequence[str]) -> bool:
    """Verify as a Beam pipeline and print the findings; return whether there are any.

    Raises:
        ValueError: with the value and the remedy.
        RuntimeError: the fault that ended the job, as a line of `E-…` somewhere in its text.
    """
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    from beam_tfrec.pipelines import engines
    from beam_tfrec.transforms.verify.with_beam import VerifyEverything

    began = time.perf_counter()
    config = configure(engines.beam_parser().parse_known_args(list(argv))[1])
    if config.workers is not None:
        raise ValueError(f"workers must come without --runner, got {config.workers}: see its flags")
    uris = [*config.paths, *(uri for given in config.sources.values() for uri in given)]
    options = engines.checked_options(argv, uris)
    if engines.makes_template(options):
        raise ValueError("template_location must come without verify, got both: leave it out")
    name = f"beam-tfrec-verify-{secrets.token_hex(8)}.json"
    if engines.is_dry_run(options):  # sends no request to a store
        everything = VerifyEverything(config, name)
        engines.run_graph(lambda root: root | "Verify" >> everything, options, waits=False)
        return False
    cloud = options.view_as(GoogleCloudOptions)
    given = cloud.temp_location or cloud.staging_location
    if given and is_local(given):
        open_storage(given).require_folder()
    if not given and not engines.runs_workers_here(options):
        what = f"temp_location must be given for {engines.runner_of(options)}, got none"
        raise ValueError(f"{what}: add a place for the result that workers and this machine see")
    find_sets_and_files(config, Findings())
    with tempfile.TemporaryDirectory(prefix="beam-tfrec-") as spare:
        result = join_uri(given or spare, name)
        everything = VerifyEverything(config, result)
        engines.run_graph(lambda root: root | "Verify" >> everything, options)
        found = msgspec.json.decode(read_uri(result), type=Findings)
    return say_found(found, time.perf_counter() - began)


if __name__ == "__main__":
    cli.main("verify")
