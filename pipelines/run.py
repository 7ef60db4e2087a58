"""Run a source's command: flags, preflight, the graph on its engine, the summary."""

import argparse
import atexit
import contextlib
import gc
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.command import JOB_ELSEWHERE, OUR_LOGGERS, accepting_command, guarded, quoted, say
from pipelines.data_set import DataSetConfig, build
from pipelines.data_set_flags import add_data_set_flags, data_set_fields, run_date_of, with_run_date
from pipelines.engines import (
    build_nothing,
    check_engine,
    follow,
    is_dataflow,
    is_dry_run,
    makes_template,
    parse_flags,
    prepare,
    runner_of,
    runs_workers_here,
)
from pipelines.flags import FlagParser
from pipelines.progress_display import showing_progress
from pipelines.summary import summarize
from schemas.manifest import MANIFEST_NAME, REPORT_NAME, read_manifest
from schemas.shown_values import counted
from transforms.builders import builder_processes
from transforms.commit import find_complete
from transforms.earlier import Since, dividing_options, find_earlier_sets
from transforms.images.check_images import SAFE_PILLOW_MAJOR
from transforms.output_files import EXCLUDED_NAME, remove_output
from transforms.pipeline_spool import close_spools, shares_memory
from transforms.progress import PROGRESS
from transforms.report.page import has_report, write_report
from transforms.storage import (
    Storage,
    check_uri,
    find_uri,
    is_beams,
    is_local,
    join_uri,
    name_below,
    open_storage,
    read_uri,
)
from transforms.storage.disk import RunLock, coded, without_new_empty_folders

_LOG = logging.getLogger(__name__)
_COLLECT_AFTER_OBJECTS = 500_000

Build = Callable[..., object]
"""Builds a graph, given a pipeline and `config`."""


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a data set, and what is asked of this run alone.

    Attributes:
        config: of the data set.
        overwrite: delete an earlier data set first.
        trust_manifest: take a complete output of the same options for up to date.
        since: earlier data sets that it adds to; None for none.
        waits: stay until the job has ended, and say what it made.
        plan: `text` or `json` to say what the run would make, instead of running; empty to run.
        report: whether a report is made; None where that follows from runner and output.
    """

    config: DataSetConfig
    overwrite: bool = False
    trust_manifest: bool = False
    since: Since | None = None
    waits: bool = True
    plan: str = ""
    report: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what has no effect where the paths lie, or could name no object."""
        config = self.config
        config.access.check_needed(config.roots.values(), self._others(), config.output)
        for uri in self.uris():
            check_uri(uri)
        if self.since and self.since.names:
            config.check_since()

    def uris(self) -> list[str]:
        """Return everything that workers read and write."""
        return [*self.config.roots.values(), *self._others(), self.config.output]

    def _others(self) -> list[str]:
        """Return what is read besides images."""
        roots, listed_roots = self.config.roots, self.config.listed_roots
        listed = [uri for root, uri in listed_roots.items() if root not in roots]
        exclude = [self.config.exclude] if self.config.exclude else []
        since = self.since.names if self.since else ()
        return [*_source_files(self.config), *listed, *exclude, *since]


@dataclass(frozen=True)
class Command:
    """The command of one source.

    Attributes:
        name: of its module in `pipelines`.
        does: one line for `--help`.
        config: class of its configuration.
        add_flags: adds the flags of the source and its layouts.
        fields: what those flags say, as fields of the configuration.
        images: whether the source has image files.
    """

    name: str
    does: str
    config: type[DataSetConfig]
    add_flags: Callable[[FlagParser], None]
    fields: Callable[[argparse.Namespace], dict[str, Any]]
    images: bool = True

    def parser(self) -> FlagParser:
        """Return the command's flags."""
        parser = FlagParser(f"beam-tfrec {self.name}", self.does)
        self.add_flags(parser)
        add_data_set_flags(parser, images=self.images)
        return parser

    def configure(self, argv: Sequence[str]) -> tuple[RunConfig, list[str]]:
        """Return the run that the arguments ask for, and the arguments that are Beam's.

        Raises:
            ValueError: with the value and the remedy.
        """
        flags, beam_args = parse_flags(self.parser(), argv)
        fields = self.fields(flags)
        date = run_date_of(flags)
        program, given = self._program(), with_run_date(argv, flags, date)
        config = self.config(
            **fields,
            **data_set_fields(flags, date, images=self.images),
            accept_command=accepting_command(program, given),
            accept_drops_command=accepting_command(program, given, "--max_dropped"),
        )
        run_config = RunConfig(
            config,
            flags.overwrite,
            flags.trust_manifest,
            Since(tuple(flags.since), date),
            waits=not flags.no_wait,
            plan=flags.plan or "",
            report=True if flags.report else False if flags.no_report else None,
        )
        return run_config, beam_args

    def run(self, argv: Sequence[str]) -> None:
        """Convert as the arguments say; returns when the data set is committed."""
        execute(*self.configure(argv))

    def main(self) -> None:
        """Run as a command: one line and an exit code for every fault."""
        sys.exit(guarded(self.run, sys.argv[1:]))

    def _program(self) -> str:
        """Return how the user started this; the console command is in its first argument."""
        is_console = sys.argv[0].startswith("beam-tfrec ")
        return sys.argv[0] if is_console else f"python -m pipelines.{self.name}"


def execute(run: RunConfig, beam_args: Sequence[str], build: Build = build) -> None:
    """Run until the data set is committed, unless it is complete already; or plan it.

    Args:
        run: what is asked for.
        beam_args: Beam's part of the command line.
        build: builds the graph.

    Raises:
        RuntimeError: the fault that ended the run, as a line of `E-…` somewhere in its text.
    """
    with without_new_empty_folders(run.config.output):
        _execute(run, beam_args, build)


def _execute(run: RunConfig, beam_args: Sequence[str], build: Build) -> None:
    options = prepare(PipelineOptions(list(beam_args)))
    check_engine(options, run.uris(), waits=run.waits)
    check_spool(run.config, options)
    run = replace(run, config=replace(run.config, report=_wants_report(run, options)))
    if run.plan:
        _plan(run, options)
        return
    if is_dry_run(options):  # which asks no store
        run_graph(partial(build, config=run.config), options, waits=False)
        return
    config = with_earlier_sets(run).located()
    output = open_storage(config.output, config.access)
    started_s = time.monotonic()
    if run.overwrite or not run.trust_manifest:
        _check_sources(config)
    output.probe()
    with contextlib.closing(RunLock(config.output)) as lock:
        lock.take(alone=run.overwrite)
        if run.overwrite:
            config = _overwrite(config, output)
            lock.take(alone=False)
        _run_to_the_end(run, config, output, build, options, started_s)


def _run_to_the_end(
    run: RunConfig,
    config: DataSetConfig,
    output: Storage,
    build: Build,
    options: PipelineOptions,
    started_s: float,
) -> None:
    """Run the graph unless the output is complete, and say what was made."""
    if _is_complete(config, output, trust_manifest=run.trust_manifest):
        say(f"already complete: {join_uri(config.output, MANIFEST_NAME)}", sys.stdout)
        if config.report:
            _make_missing_report(config)
        if makes_template(options):
            run_graph(build_nothing, options, waits=False)
        return
    _check_sources(config)
    if config.decodes_images:
        _warn_of_pillow(version("pillow"))
    if run.since and run.since.names:
        _LOG.info("adding to %s", counted(len(config.earlier.sets), "earlier data set"))
    PROGRESS.reset()
    spare_the_collector()
    loggers = [logging.getLogger(name) for name in OUR_LOGGERS]
    noun, known = config.layout.sample_noun, runs_workers_here(options)
    with (
        showing_progress(PROGRESS, loggers, noun, known=known),
        _builder_processes(config, options),
    ):
        run_graph(partial(build, config=config), options, waits=run.waits)
    if run.waits and not makes_template(options):
        _say_what_was_made(config, output, time.monotonic() - started_s)


def spare_the_collector() -> None:
    """Keep Python's cycle collector from walking through Beam again and again.

    Samples make no cycles, but their number triggers collections of everything that was imported.
    """
    if not gc.get_freeze_count():  # a second time would keep an earlier run for good
        gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 20)


def _warn_of_pillow(installed: str) -> None:
    """Warn where images would go to a decoder with a known hole."""
    if int(installed.partition(".")[0]) < SAFE_PILLOW_MAJOR:
        _LOG.warning(
            "images are decoded by Pillow %s, which has a critical JPEG overflow"
            " (CVE-2026-112403); install pillow>=%d, as requirements.lock does",
            installed,
            SAFE_PILLOW_MAJOR,
        )


def _plan(run: RunConfig, options: PipelineOptions) -> None:
    """Say what a run would make, and end as it would before its first shard."""
    from pipelines.plan import (  # a run need not wait for what plans alone use
        Asked,
        build_plan,
        plan_json,
        plan_lines,
        plan_run,
        trusted_plan,
    )
    from transforms.forecast import new_slot
    from transforms.publish_plan import refuse_no_place

    if is_dry_run(options) or makes_template(options):
        raise ValueError("plan must come without dry_run and template_location: leave one out")
    config = with_earlier_sets(run).located()
    output, trust = open_storage(config.output, config.access), run.trust_manifest
    as_json = run.plan == "json"
    if run.overwrite or not trust:
        _check_sources(config)
    refuse_no_place(output)
    complete = not run.overwrite and _is_complete(config, output, trust_manifest=trust)
    if complete and trust:  # then its sources need not be there
        there = f"already complete: {join_uri(config.output, MANIFEST_NAME)}"
        _say_all(plan_json(trusted_plan(config.output)) if as_json else [there])
        return
    _check_sources(config)
    spare_the_collector()
    slot = new_slot()
    graph = partial(build_plan, config=config, slot=slot)
    run_graph(graph, PipelineOptions([]), waits=True)  # here, whatever runner is to write
    elsewhere = "" if runs_workers_here(options) else runner_of(options)
    planned = plan_run(config, slot.take(), Asked(run.overwrite, complete, elsewhere))
    noun = config.layout.sample_noun
    _say_all(plan_json(planned.plan) if as_json else plan_lines(planned.plan, noun))
    if planned.fault is not None:
        raise planned.fault


def _say_all(lines: Iterable[str]) -> None:
    for line in lines:
        say(line, sys.stdout)


def _source_files(config: DataSetConfig) -> list[str]:
    return [*dict.fromkeys(uri for uris in config.source_files.values() for uri in uris)]


def _is_complete(config: DataSetConfig, output: Storage, *, trust_manifest: bool) -> bool:
    complete = find_complete(
        output,
        config.options(),
        config.source_files,
        config.listed_roots,
        config.exclude,
        trust_manifest=trust_manifest,
        access=config.access,
        optional_splits=config.splitting.optional_splits,
    )
    return complete is not None


def beam_options(beam_args: Sequence[str], uris: Sequence[str]) -> PipelineOptions:
    """Return Beam's options for a graph that is waited for, checked as far as can be.

    Args:
        beam_args: Beam's flags.
        uris: everything that workers read and write.

    Raises:
        ValueError: with the value and the remedy.
        RuntimeError: `E-JOB` when nothing answers where the job service should be.
    """
    options = prepare(PipelineOptions(list(beam_args)))
    check_engine(options, uris, waits=True)
    return options


def run_graph(
    build: Callable[[beam.Pipeline], object], options: PipelineOptions, *, waits: bool
) -> None:
    """Build a graph, give it to its engine, say what is to be said, and wait for its end if asked.

    Raises:
        Exception: the runner's, when the job has failed or was cancelled.
    """
    _collect_temporary_files(options)
    with _temporary_folder_told():
        pipeline = beam.Pipeline(runner=runner_of(options), options=options)
        # Beam makes this folder for steps in other languages. We have none of these, and a signal
        # would leave the folder there.
        os.rmdir(pipeline.local_tempdir)
    try:
        build(pipeline)
        with _beam_held_back():
            for line in follow(pipeline.run(), options, waits=waits):
                say(line, sys.stdout)
    finally:
        close_spools(pipeline)


@contextlib.contextmanager
def _builder_processes(config: DataSetConfig, options: PipelineOptions) -> Iterator[None]:
    """Start builder processes for a run in this process.

    There are none when a path needs Beam's filesystems, when reads are rate-limited, when sources
    are unpacked to disk, or when the layout is the user's own.
    """
    uris = [*config.roots.values(), config.output]
    in_here = runner_of(options) == "FnApiRunner" and shares_memory(options)
    if (
        in_here
        and not config.keeps_on_disk
        and not config.access.max_reads_per_second
        and type(config.layout).__module__.startswith("schemas.")
        and not any(map(is_beams, uris))
    ):
        with builder_processes(config.limits, config.output, OUR_LOGGERS):
            yield
    else:
        yield


def _wants_report(run: RunConfig, options: PipelineOptions) -> bool:
    """Return whether a report is asked for, or made because it needs no remote request."""
    if run.report is not None:
        return run.report
    return runner_of(options) == "FnApiRunner" and is_local(run.config.output)


def _make_missing_report(config: DataSetConfig) -> None:
    """Make the report that a run did not come to, or was not asked for."""
    if not has_report(config.output, config.access) and write_report(config.output, config.access):
        say(f"report: {join_uri(config.output, REPORT_NAME)}", sys.stdout)


def _say_what_was_made(config: DataSetConfig, output: Storage, seconds: float) -> None:
    uri = config.output
    manifest = read_manifest(output.read(MANIFEST_NAME), join_uri(uri, MANIFEST_NAME))
    is_reported = config.report and has_report(uri, config.access)
    for line in summarize(manifest, uri, seconds, has_report=is_reported).splitlines():
        say(line, sys.stdout)


def check_spool(config: DataSetConfig, options: PipelineOptions) -> None:
    """Refuse a folder for spools where nothing is kept in one."""
    runner = runner_of(options)
    in_here = runner == "FnApiRunner" and shares_memory(options)
    is_used = in_here or not is_local(config.output) or config.keeps_on_disk
    if config.access.spool_dir and not is_used:
        several = "" if shares_memory(options) else " in several processes"
        raise ValueError(
            f"spool_dir must come with a run in this process, or an output that is not local, got"
            f" {config.access.spool_dir} and {runner}{several}: leave it out"
        )


def with_earlier_sets(run: RunConfig) -> DataSetConfig:
    """Find the earlier data sets, before anything is made or deleted."""
    config = run.config
    if run.since is None or not run.since.names:
        return config
    earlier = find_earlier_sets(
        run.since,
        config.output,
        config.layout.name,
        access=config.access,
        overwrite=run.overwrite,
        splitting=dividing_options(config.options()),
    )
    return replace(config, earlier=earlier)


def _check_sources(config: DataSetConfig) -> None:
    """Find the files and folders that the user named, before anything is made or deleted."""
    for uri in (*_source_files(config), *filter(None, [config.exclude])):
        find_uri(uri, config.access)
    for uri in sorted({*config.roots.values(), *config.listed_roots.values()}):
        open_storage(uri, config.access).require_folder()


def _overwrite(config: DataSetConfig, output: Storage) -> DataSetConfig:
    """Delete the data set that is there; what is to be excluded by its rejects is kept."""
    if not config.exclude or name_below(config.output, config.exclude) is None:
        return replace(config, replaces=remove_output(output, config.names, config.splits))
    excluded = read_uri(config.exclude, config.access)
    replaces = remove_output(output, config.names, config.splits, excluded)
    output.create(EXCLUDED_NAME, excluded)  # where there was no data set of ours
    kept = join_uri(config.output, EXCLUDED_NAME)

    def renamed(command: str) -> str:
        for form in ("--exclude {}", "--exclude={}"):
            given, instead = form.format(config.exclude), form.format(kept)
            command = command.replace(_quoted_words(given), _quoted_words(instead))
        return command

    return replace(
        config,
        exclude=kept,
        accept_command=renamed(config.accept_command),
        accept_drops_command=renamed(config.accept_drops_command),
        replaces=replaces,
    )


def _quoted_words(text: str) -> str:
    flag, space, path = text.partition(" ")
    return f"{flag}{space}{quoted(path)}" if flag == "--exclude" else quoted(text)


def _collect_temporary_files(options: PipelineOptions) -> None:
    """Have a runner's temporary files in a folder that goes when this process ends.

    Beam leaves three folders for every job. Not for Dataflow: one of them is its cache of packages.
    """
    if JOB_ELSEWHERE.temporary or runner_of(options) == "FnApiRunner" or is_dataflow(options):
        return
    with _temporary_folder_told():
        JOB_ELSEWHERE.temporary = tempfile.tempdir = tempfile.mkdtemp(prefix="beam-tfrec-")
    # Registered before a job server of Beam's, hence called after that has ended.
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)


@contextlib.contextmanager
def _temporary_folder_told() -> Iterator[None]:
    """Beam makes itself a temporary folder for every pipeline."""
    try:
        yield
    except OSError as error:
        elsewhere = "set TMPDIR to a folder that can be written and has room, then run again"
        raise coded(error, tempfile.tempdir or "temporary folder", elsewhere) from error


@contextlib.contextmanager
def _beam_held_back() -> Iterator[None]:
    """Hide what Beam prints about an error: a fault is one line of ours."""
    if _LOG.isEnabledFor(logging.DEBUG):
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield
