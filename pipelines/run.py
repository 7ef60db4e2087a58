"""Run a source's command: flags, preflight, the graph on its engine, what was made."""

import argparse
import contextlib
import gc
import logging
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from pipelines.cli import OUR_LOGGERS, FlagParser, say
from pipelines.data_set import DataSetConfig, build
from pipelines.engines import (
    build_nothing,
    checked_options,
    is_dry_run,
    makes_template,
    parse_flags,
    run_graph,
    runner_of,
    runs_workers_here,
)
from pipelines.flags import add_data_set_flags, data_set_fields, is_dated, run_date_of
from schemas.documents.data_card import CARD_NAME
from schemas.faults import bytes_text, counted, printable
from schemas.manifest import (
    DUPLICATES_NAME,
    MANIFEST_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    Manifest,
    SplitSummary,
    read_manifest,
)
from transforms.builders import builder_processes
from transforms.commit import find_complete
from transforms.earlier import dividing_options, find_earlier_sets
from transforms.images.check_images import SAFE_PILLOW_MAJOR
from transforms.output_files import remove_output
from transforms.progress import PROGRESS, Progress
from transforms.publish_plan import refuse_no_place
from transforms.sources.elements import shares_memory
from transforms.storage import (
    Storage,
    find_uri,
    is_beams,
    is_local,
    join_uri,
    open_storage,
)
from transforms.storage.disk import RunLock

_LOG = logging.getLogger(__name__)
_COLLECT_AFTER_OBJECTS = 500_000
_OF_ONE_RUN = re.compile(r" --(overwrite|plan([ =](text|json))?)(?= |$)")
_LOGGED_EVERY_S = 30.0
_DRAWN_EVERY_S = 0.2


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
        parser = FlagParser(self.name, self.does)
        self.add_flags(parser)
        add_data_set_flags(parser, images=self.images)
        return parser

    def configure(self, argv: Sequence[str]) -> tuple[DataSetConfig, list[str]]:
        """Return the run that the arguments ask for, and the arguments that are Beam's.

        Raises:
            ValueError: with the value and the remedy.
        """
        flags, beam_args = parse_flags(self.parser(), argv)
        fields = self.fields(flags)
        date = run_date_of(flags)
        command = shlex.join(["python", "-m", f"pipelines.{self.name}", *argv])
        command = _OF_ONE_RUN.sub("", command)
        if flags.date is None and is_dated(flags):
            command += f" --date {date.isoformat()}"
        shared = data_set_fields(flags, date, images=self.images)
        return self.config(**fields, **shared, command=command), beam_args

    def run(self, argv: Sequence[str]) -> None:
        """Convert as the arguments say; returns when the data set is committed."""
        execute(*self.configure(argv))


def execute(config: DataSetConfig, beam_args: Sequence[str]) -> None:
    """Run until the data set is committed, unless it is complete already; or plan it.

    Args:
        config: of the run.
        beam_args: Beam's part of the command line.

    Raises:
        RuntimeError: the fault that ended the run, as a line of `E-…` somewhere in its text.
    """
    options = checked_options(beam_args, config.uris, waits=config.waits)
    if config.report is None:  # where it needs no remote request
        reports = runner_of(options) == "FnApiRunner" and is_local(config.output)
        config = replace(config, report=reports)
    if config.plan:
        _plan(config, options)
    elif is_dry_run(options):  # which asks no store
        run_graph(partial(build, config=config), options, waits=False)
    else:
        _make(config, options)


def _make(config: DataSetConfig, options: PipelineOptions) -> None:
    """Check that the run can work, and run the graph unless the output is complete."""
    config = with_earlier_sets(config)
    output = open_storage(config.output, config.access)
    started_s = time.monotonic()
    needs_sources = config.overwrite or not config.trust_manifest
    if needs_sources:  # else a complete output is enough
        _check_sources(config)
    output.probe()
    with contextlib.closing(RunLock(config.output)) as lock:
        lock.take(alone=config.overwrite)
        if config.overwrite:
            replaces = remove_output(output, config.names, config.splits)
            config = replace(config, replaces=replaces)
            lock.take(alone=False)
        if find_complete(output, config):
            _say_complete(config)
            if config.report:
                _make_missing_report(config)
            if makes_template(options):
                run_graph(build_nothing, options, waits=False)
            return
        if not needs_sources:
            _check_sources(config)
        _convert(config, options)
        if config.waits and not makes_template(options):
            _say_what_was_made(config, output, time.monotonic() - started_s)


def _make_missing_report(config: DataSetConfig) -> None:
    """Make the report of a complete data set: a killed run may have made none."""
    from transforms.report.page import has_report, write_report

    uri, access = config.output, config.access
    if not has_report(uri, access) and write_report(uri, access):
        say(f"report: {join_uri(uri, REPORT_NAME)}")


def _convert(config: DataSetConfig, options: PipelineOptions) -> None:
    installed = version("pillow")
    if config.decodes_images and int(installed.partition(".")[0]) < SAFE_PILLOW_MAJOR:
        _LOG.warning(
            "images are decoded by Pillow %s, which has a critical JPEG overflow"
            " (CVE-2026-112403); install pillow>=%d, as requirements.lock does",
            installed,
            SAFE_PILLOW_MAJOR,
        )
    if config.earlier.sets:
        _LOG.info("adding to %s", counted(len(config.earlier.sets), "earlier data set"))
    PROGRESS.reset()
    spare_the_collector()
    with contextlib.ExitStack() as around:
        if runs_workers_here(options):
            around.enter_context(showing_progress(config.layout.sample_noun))
        if _can_build_beside(config, options):
            around.enter_context(builder_processes(config.limits, config.output, OUR_LOGGERS))
        run_graph(partial(build, config=config), options, waits=config.waits)


def _can_build_beside(config: DataSetConfig, options: PipelineOptions) -> bool:
    """Return whether other processes may build shards of a run in this process.

    Not when a path needs Beam's filesystems, when reads are rate-limited, when sources are unpacked
    to disk, or when the layout is the user's own.
    """
    return (
        runner_of(options) == "FnApiRunner"
        and shares_memory(options)
        and not config.keeps_on_disk
        and not config.access.max_reads_per_second
        and type(config.layout).__module__.startswith("schemas.")
        and not any(map(is_beams, [*config.roots.values(), config.output]))
    )


def spare_the_collector() -> None:
    """Keep Python's cycle collector from walking through Beam again and again.

    Samples make no cycles, but their number triggers collections of everything that was imported.
    """
    if not gc.get_freeze_count():  # a second time would keep an earlier run for good
        gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 20)


def _plan(config: DataSetConfig, options: PipelineOptions) -> None:
    """Say what a run would make, and end as it would before its first shard."""
    from pipelines.plan import build_plan, plan_json, plan_lines, plan_run
    from transforms.forecast import take_plan

    if is_dry_run(options) or makes_template(options):
        raise ValueError("plan must come without dry_run and template_location: leave one out")
    config = with_earlier_sets(config)
    output = open_storage(config.output, config.access)
    needs_sources = config.overwrite or not config.trust_manifest
    if needs_sources:
        _check_sources(config)
    refuse_no_place(output)
    complete = not config.overwrite and find_complete(output, config) is not None
    if complete and config.trust_manifest:  # then its sources need not be there
        _say_complete(config)
        return
    if not needs_sources:
        _check_sources(config)
    spare_the_collector()
    run_graph(partial(build_plan, config=config), PipelineOptions([]))  # always here
    elsewhere = "" if runs_workers_here(options) else runner_of(options)
    plan, fault = plan_run(config, take_plan(), complete=complete, runner=elsewhere)
    as_json = config.plan == "json"
    _say_all(plan_json(plan) if as_json else plan_lines(plan, config.layout.sample_noun))
    if fault is not None:
        raise fault


def _say_all(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


def _say_complete(config: DataSetConfig) -> None:
    say(f"already complete: {join_uri(config.output, MANIFEST_NAME)}")


def _say_what_was_made(config: DataSetConfig, output: Storage, seconds: float) -> None:
    uri = config.output
    manifest = read_manifest(output.read(MANIFEST_NAME), join_uri(uri, MANIFEST_NAME))
    _say_all(summarize(manifest, uri, seconds, config.layout.sample_noun))
    if config.report:
        from transforms.report.page import has_report

        if has_report(uri, config.access):
            say(f"  look at it: {join_uri(uri, REPORT_NAME)}")


def summarize(manifest: Manifest, output: str, seconds: float, noun: str) -> Iterator[str]:
    """Yield what was made, what was rejected and why, and how to read it.

    Args:
        manifest: of the data set.
        output: URI of the data set.
        seconds: that the run took.
        noun: what a sample is, such as `image`.
    """
    records = sum(split.records for split in manifest.splits.values())
    rate = f"{records / seconds:,.0f} {noun}s/s"
    yield f"{printable(output)}: {counted(records, 'record')} in {seconds:.1f} s ({rate})"
    for name, split in manifest.splits.items():
        yield from _split_lines(name, split, noun if split.images is None else "object")
    for pair in manifest.duplicates or ():  # what is learnt from one split is tested on the other
        (one, other), names = pair.splits, " and ".join(map(printable, pair.names))
        same = f"{counted(pair.contents, 'source')} of {one} with the bytes of one of {other}"
        yield f"  warning: {same}, such as {names}: {join_uri(output, DUPLICATES_NAME)}"
    yield f"  rejects: {join_uri(output, REJECTED_NAME)}"
    yield f"  everything else: {join_uri(output, MANIFEST_NAME)}"
    if manifest.shards:
        where = f"{output!a}, {manifest.shards[0].split!a}"
        yield "  read it:"
        yield "    import readers"
        yield f"    dataset = readers.load({where})  # tf.data"
        yield f"    records = readers.open({where})  # without TensorFlow"
        yield f"  read it by other tools: {join_uri(output, CARD_NAME)}"


def _split_lines(name: str, split: SplitSummary, noun: str) -> Iterator[str]:
    fate = split.annotations
    line = f"  {name}: {split.records} of {counted(split.listed, noun)}"
    line += f" in {counted(split.shards, 'shard')}, {bytes_text(split.bytes)}"
    yield f"{line}; {fate.written} of {fate.listed} annotations" if fate.listed else line
    if split.images:
        yield f"    {counted(split.images, 'image')}: a photo is stored once for each object"
    for source in split.sources:
        yield f"    {source.kind}: {source.images} images, {source.annotations} annotations"
    rows: dict[str, Mapping[str, int]] = {
        "rejected": split.rejected,
        "left out": {
            "excluded": split.excluded,
            "in earlier data sets": split.earlier,
            **split.skipped,
        },
        "annotations left out": {
            "lost with images": fate.lost,
            "in earlier data sets": fate.earlier,
            "repeated ids": split.repeated_annotation_ids,
            **fate.skipped,
        },
        f"annotations dropped, see {REJECTED_NAME}": fate.dropped,
        "mended": split.repairs,
        "unusual": split.traits,
    }
    for what, counts in rows.items():
        if terms := [f"{count} {reason}" for reason, count in counts.items() if count]:
            yield f"    {what}: {', '.join(terms)}"
    if split.earlier and split.listed == split.earlier + split.excluded:
        yield "    nothing is new: the split is empty here"


def with_earlier_sets(config: DataSetConfig) -> DataSetConfig:
    """Find the earlier data sets, before anything is made or deleted."""
    if config.since is None or not config.since.names:
        return config
    earlier = find_earlier_sets(
        config.since,
        config.output,
        config.layout.name,
        access=config.access,
        overwrite=config.overwrite,
        splitting=dividing_options(config.options()),
    )
    return replace(config, earlier=earlier)


def _check_sources(config: DataSetConfig) -> None:
    """Find the files and folders that the user named, before anything is made or deleted."""
    for uri in (*config.all_files, *filter(None, [config.exclude])):
        find_uri(uri, config.access)
    for uri in sorted({*config.roots.values(), *config.listed_roots.values()}):
        open_storage(uri, config.access).require_folder()


def progress_line(progress: Progress, noun: str, samples_per_s: float, bytes_per_s: float) -> str:
    """Return how far a run is, as a line of a log.

    >>> progress = Progress()
    >>> progress.plan(samples=1000, shards=16)
    >>> progress.add(Counts(done=250, rejected=1, bytes=40_000_000))
    >>> progress_line(progress, "image", 125.0, 20e6)
    '250 of 1000 images (25 %), 0 of 16 shards, 1 rejected; 125 images/s, 20 MB/s, 00:06 left'
    """
    share = 100 * progress.done // max(progress.planned, 1)
    left = ""
    if samples_per_s:
        seconds = (progress.planned - progress.done) / samples_per_s
        left = f", {tqdm.format_interval(seconds)} left"
    return (
        f"{progress.done} of {counted(progress.planned, noun)} ({share} %),"
        f" {progress.shards_done} of {counted(progress.shards_planned, 'shard')},"
        f" {progress.rejected} rejected;"
        f" {samples_per_s:.0f} {noun}s/s, {bytes_text(int(bytes_per_s))}/s{left}"
    )


@contextlib.contextmanager
def showing_progress(noun: str) -> Iterator[None]:
    """Show how far this process is: a bar on a terminal, else a line every 30 s.

    Args:
        noun: what a sample is, such as `image`.
    """
    ended = threading.Event()
    show = _draw_progress if sys.stderr.isatty() else _log_progress
    thread = threading.Thread(target=show, args=(noun, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _log_progress(noun: str, ended: threading.Event) -> None:
    done = written = 0
    while not ended.wait(_LOGGED_EVERY_S):
        if PROGRESS.planned:
            samples_per_s = (PROGRESS.done - done) / _LOGGED_EVERY_S
            bytes_per_s = (PROGRESS.bytes - written) / _LOGGED_EVERY_S
            _LOG.info("%s", progress_line(PROGRESS, noun, samples_per_s, bytes_per_s))
        done, written = PROGRESS.done, PROGRESS.bytes


def _draw_progress(noun: str, ended: threading.Event) -> None:
    unit, loggers = f" {noun}s", [logging.getLogger(name) for name in OUR_LOGGERS]
    with (
        logging_redirect_tqdm(loggers),
        tqdm(total=0, unit=unit, desc="reading annotations", dynamic_ncols=True) as bar,
    ):
        is_last = False
        while not is_last:
            is_last = ended.wait(_DRAWN_EVERY_S)
            if PROGRESS.planned:
                bar.total = PROGRESS.planned
                bar.set_description("converting", refresh=False)
                shards = f"{PROGRESS.shards_done}/{PROGRESS.shards_planned} shards"
                bar.set_postfix_str(f"{shards}, {PROGRESS.rejected} rejected", refresh=False)
            bar.update(PROGRESS.done - bar.n)
            bar.refresh()
