"""Run a source's command: flags, checks, the graph on its engine, the summary."""

import argparse
import contextlib
import gc
import io
import logging
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any, TextIO

from apache_beam.options.pipeline_options import PipelineOptions
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from beam_tfrec.pipelines import engines
from beam_tfrec.pipelines.cli import OURS, config_of, say
from beam_tfrec.pipelines.data_set import DataSetConfig, build
from beam_tfrec.pipelines.flags import SourceParser, data_set_fields, split_of_bare
from beam_tfrec.schemas.documents.data_card import CARD_NAME
from beam_tfrec.schemas.faults import bytes_text, counted, printable, run_fault
from beam_tfrec.schemas.manifest import (
    DUPLICATES_NAME,
    MANIFEST_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    Manifest,
    SplitSummary,
    read_manifest,
)
from beam_tfrec.schemas.splits import split_without_bucket
from beam_tfrec.transforms import output_files, storage
from beam_tfrec.transforms.builders import builder_processes
from beam_tfrec.transforms.commit import find_complete
from beam_tfrec.transforms.earlier import DATE, dividing_options, find_earlier_sets
from beam_tfrec.transforms.images.check_images import SAFE_PILLOW_MAJOR, Check
from beam_tfrec.transforms.progress import PROGRESS
from beam_tfrec.transforms.shuffle.elements import shares_memory
from beam_tfrec.transforms.storage.disk import RunLock, without_new_empty_folders

_LOG = logging.getLogger(__name__)
_COLLECT_AFTER_OBJECTS = 500_000
_OF_ONE_RUN = re.compile(r" --(overwrite|plan([ =](text|json))?)(?= |$)")
_LOGGED_EVERY_S = 10.0
_SHOWN_CLASSES = 6
_DRAWN_EVERY_S = 0.2
_EPILOG = """\
runners (docs/dataflow.md, docs/flink.md):
  --runner NAME         run as a job of this Beam runner, such as DataflowRunner, with Beam's
                        own flags (default: run in this process)

examples:
  {0} --output out
  {0} --output out --plan"""


@dataclass(frozen=True)
class Command:
    """The command of one source.

    Attributes:
        name: name of its module in `pipelines`.
        config: class of its configuration.
        add_flags: adds the flags of the source and its layouts.
        fields: turns those flags into fields of the configuration with other names or values.
        example: flags of its sources, for the help's examples.
        images: whether the source has image files.
    """

    name: str
    config: type[DataSetConfig]
    add_flags: Callable[[SourceParser], None]
    fields: Callable[[argparse.Namespace], dict[str, Any]]
    example: str
    images: bool = True

    def parser(self, *, short: bool = False) -> SourceParser:
        """Return the command's flags, and the help of all or of those that most runs need."""
        parser = SourceParser(
            self.name,
            short=short,
            epilog=_EPILOG.format(f"beam-tfrec {self.name} {self.example}"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
        )
        self.add_flags(parser)
        parser.add_data_set_flags(images=self.images, since=self.config.takes_since)
        helps = parser.add_argument_group("help")
        helps.add_argument("-h", "--help", action="help", help="show the flags that most runs need")
        helps.add_argument("--help_all", action="help", help="show all flags")
        needed = [f"{f.option_strings[0]} {f.metavar}" for f in parser.flags if f.required]
        parser.usage = f"%(prog)s {' '.join(needed)} [FLAG ...]"
        return parser

    def configure(self, argv: Sequence[str]) -> tuple[DataSetConfig, list[str]]:
        """Return the configuration of the run, and the arguments for Beam.

        `config_of` takes fields from flags of the same names. `fields` and `data_set_fields` return
        fields with other names or values than the flags.

        Raises:
            ValueError: with the value and the remedy.
        """
        parser = self.parser(short="--help_all" not in argv)
        flags, beam_args = engines.parse_flags(parser, argv)
        flags.split = split_of_bare(flags)
        fields = self.fields(flags) | data_set_fields(flags, images=self.images)
        command = _OF_ONE_RUN.sub("", shlex.join(["beam-tfrec", self.name, *argv]))
        if flags.date is None and DATE in command:
            command += f" --date {fields['since'].date}"
        return config_of(self.config, flags, **fields, command=command), beam_args

    def __call__(self, argv: Sequence[str]) -> None:
        """Run the command; return once the data set is committed."""
        execute(*self.configure(argv))


def beam_options(config: DataSetConfig, beam_args: Sequence[str]) -> PipelineOptions:
    """Log as the user asks, and return Beam's options, checked."""
    if config.quiet:
        OURS.setLevel(logging.ERROR)
    return engines.checked_options(beam_args, config.all_uris, waits=config.waits)


def execute(config: DataSetConfig, beam_args: Sequence[str]) -> None:
    """Run until the data set is committed, or plan it. Return at once if it is complete.

    Args:
        config: configuration of the run.
        beam_args: Beam's part of the command line.

    Raises:
        RuntimeError: the fault that ended the run, with its `E-…` line in the text.
    """
    options = beam_options(config, beam_args)
    if storage.is_local(config.output) and os.path.isfile(config.output.removeprefix("file://")):
        raise run_fault("E-ARG", config.output, "is a file", "give a folder")
    if config.report is None:  # if it needs no remote request
        reports = engines.runner_of(options) == "FnApiRunner" and storage.is_local(config.output)
        config = replace(config, report=reports)
    with without_new_empty_folders(config.output):
        if engines.is_dry_run(options) and not config.plan:  # sends no request to a store
            engines.run_graph(partial(build, config=config), options, waits=False)
            return
        config = config.completed()
        if config.since.names:
            earlier = find_earlier_sets(
                config.since,
                config.output,
                config.layout.name,
                access=config.access,
                overwrite=config.overwrite,
                splitting=dividing_options(config.options()),
            )
            if not earlier.sets:
                names = printable(", ".join(config.since.names))
                _LOG.info("no earlier data set matches %s: nothing is left out", names)
            config = replace(config, earlier=earlier)
        output = storage.open_storage(config.output, config.access)
        if config.plan:
            _plan(config, output, options)
        else:
            _run_unless_complete(config, output, options)


def _run_unless_complete(
    config: DataSetConfig, output: storage.Storage, options: PipelineOptions
) -> None:
    """Check sources and output, and run the graph unless the output is complete."""
    started_s = time.monotonic()
    output.probe()
    with contextlib.closing(RunLock(config.output)) as lock:
        lock.take(alone=config.overwrite)
        manifest = None if config.overwrite else find_complete(output, config)
        if manifest is None:
            refuse_bad_sources(config)
        output_files.refuse_others(output, config.names, config.splits, overwrite=config.overwrite)
        if manifest is not None:
            _say_complete(config)
            config.clean_up(manifest)
            if config.report:  # a killed run may have written none
                from beam_tfrec.transforms.report.page import write_report

                has_report = output_files.is_own_document(output, REPORT_NAME)
                if not has_report and write_report(config.output, config.access):
                    say(f"report: {storage.join_uri(config.output, REPORT_NAME)}")
            if engines.makes_template(options):
                engines.run_graph(engines.build_nothing, options, waits=False)
            return
        if config.overwrite:
            replaces = output_files.remove_output(output, config.names, config.splits)
            config = replace(config, replaces=replaces)
            lock.take(alone=False)
        _run_graph(config, options)
        if config.waits and not engines.makes_template(options):
            _say_what_was_made(config, output, time.monotonic() - started_s)


def _run_graph(config: DataSetConfig, options: PipelineOptions) -> None:
    """Run the graph, with progress and builder processes where it runs here."""
    conversion = config.conversion
    decodes = conversion.changes or conversion.turns or config.check is Check.DECODE
    if decodes and config.layout.reads_images:
        warn_of_pillow()
    with showing_progress(config, options) as around:
        if _can_build_elsewhere(config, options):
            # ShardBuilders (transforms/builders.py) finds these by the output's URI.
            around.enter_context(builder_processes(config.limits, config.output))
        engines.run_graph(partial(build, config=config), options, waits=config.waits)


def warn_of_pillow() -> None:
    """Log a warning if the installed Pillow is not safe for decoding."""
    installed = version("pillow")
    if int(installed.partition(".")[0]) < SAFE_PILLOW_MAJOR:
        what = f"images are decoded by Pillow {installed}, which has a critical JPEG overflow"
        remedy = f"install pillow>={SAFE_PILLOW_MAJOR}, as requirements.lock does"
        _LOG.warning("%s (CVE-2026-112403); %s", what, remedy)


@contextlib.contextmanager
def showing_progress(
    config: DataSetConfig, options: PipelineOptions
) -> Iterator[contextlib.ExitStack]:
    """Show the progress of workers in this process; yield a stack for more contexts."""
    PROGRESS.reset()
    spare_the_collector()
    with contextlib.ExitStack() as around:
        if engines.runs_workers_here(options) and not config.quiet:
            ended = threading.Event()
            shown = (ended, sys.stderr)
            thread = threading.Thread(target=_show_progress, args=shown, daemon=True)
            thread.start()
            around.callback(thread.join)
            around.callback(ended.set)
        yield around


def _can_build_elsewhere(config: DataSetConfig, options: PipelineOptions) -> bool:
    """Return whether processes next to this one may build shards.

    They may not if a path needs Beam's filesystems, reads are rate-limited, sources are unpacked to
    disk, or the layout is the user's own.
    """
    return (
        engines.runner_of(options) == "FnApiRunner"
        and shares_memory(options)
        and not config.unpacks_archives
        and not config.access.max_reads_per_second
        and type(config.layout).__module__.startswith("beam_tfrec.schemas.")
        and not any(map(storage.is_beams, [*config.roots.values(), config.output]))
    )


def spare_the_collector() -> None:
    """Make Python's cycle collector run less often, and skip the imported modules.

    Samples have no cycles, but so many of them trigger collections again and again.
    """
    if not gc.get_freeze_count():  # a second freeze would keep the objects of an earlier run
        gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 20)


def _plan(config: DataSetConfig, output: storage.Storage, options: PipelineOptions) -> None:
    """Print what a run would make, and end as that run would before its first shard."""
    from beam_tfrec.pipelines.plan import build_plan, plan_json, plan_lines, plan_run
    from beam_tfrec.transforms.forecast import GATHERED

    if engines.is_dry_run(options) or engines.makes_template(options):
        raise ValueError("plan must come without dry_run and template_location: leave one out")
    output_files.refuse_no_place(output)
    complete = not config.overwrite and find_complete(output, config) is not None
    if complete:
        output_files.refuse_others(output, config.names, config.splits, overwrite=False)
    if complete and config.trust_manifest:  # its sources may be gone
        _say_complete(config)
        return
    refuse_bad_sources(config)
    spare_the_collector()
    engines.run_graph(partial(build_plan, config=config), PipelineOptions([]))  # here, always
    elsewhere = "" if engines.runs_workers_here(options) else engines.runner_of(options)
    plan, fault = plan_run(config, GATHERED.pop(), complete=complete, runner=elsewhere)
    noun = config.layout.sample_noun
    for line in plan_json(plan) if config.plan == "json" else plan_lines(plan, noun):
        say(line)
    if fault is not None:
        raise fault


def _say_complete(config: DataSetConfig) -> None:
    say(f"already complete: {storage.join_uri(config.output, MANIFEST_NAME)}")


def _say_what_was_made(config: DataSetConfig, output: storage.Storage, seconds: float) -> None:
    uri = config.output
    manifest = read_manifest(output.read(MANIFEST_NAME), storage.join_uri(uri, MANIFEST_NAME))
    for line in summarize(manifest, uri, seconds, config.layout.sample_noun):
        say(line)
    documents = {"read it by other tools": CARD_NAME, "report": config.report and REPORT_NAME}
    for what, name in documents.items():
        if name and output_files.is_own_document(output, name):
            say(f"  {what}: {storage.join_uri(uri, name)}")


def summarize(manifest: Manifest, output: str, seconds: float, noun: str) -> Iterator[str]:
    """Yield the summary: counts, rejects with their reasons, and how to read the data set.

    Args:
        manifest: manifest of the data set.
        output: URI of the data set.
        seconds: duration of the run.
        noun: word for a sample, such as `image`.
    """
    records = sum(split.records for split in manifest.splits.values())
    rate = f"{records / seconds:,.0f} records/s"
    yield f"{printable(output)}: {counted(records, 'record')} in {seconds:.1f} s ({rate})"
    has_buckets = "buckets" in manifest.plan.options  # then all images of a split may have left it
    for name, split in manifest.splits.items():
        if split.listed or split.annotations.listed or not has_buckets:
            yield from _split_lines(name, split, noun)
    if classes := [printable(label.name) for label in manifest.plan.labels]:
        more = ", ..." if len(classes) > _SHOWN_CLASSES else ""
        yield f"  classes ({len(classes)}): {', '.join(classes[:_SHOWN_CLASSES])}{more}"
    for pair in manifest.duplicates or ():  # a test on training images proves nothing
        (one, other), names = pair.splits, " and ".join(map(printable, pair.names))
        same = f"{one} and {other} share {counted(pair.contents, 'source')}, byte for byte"
        yield f"  warning: {same}, such as {names}: {storage.join_uri(output, DUPLICATES_NAME)}"
    yield f"  rejects: {storage.join_uri(output, REJECTED_NAME)}"
    yield f"  all counts: {storage.join_uri(output, MANIFEST_NAME)}"
    if manifest.shards:
        first = manifest.shards[0].split
        where = f"{output!a}, {(split_without_bucket(first) if has_buckets else first)!a}"
        yield "  read it:"
        yield "    import beam_tfrec"
        if not manifest.is_array_record:
            yield f"    dataset = beam_tfrec.load({where})  # tf.data"
        yield f"    records = beam_tfrec.open({where})  # without TensorFlow"


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
            **fate.skipped,
        },
        f"annotations dropped, see {REJECTED_NAME}": fate.dropped,
        "repaired": split.repairs,
        "unusual": {"repeated_annotation_ids": split.repeated_annotation_ids, **split.traits},
    }
    for what, counts in rows.items():
        if terms := [f"{count} {reason}" for reason, count in counts.items() if count]:
            yield f"    {what}: {', '.join(terms)}"
    if split.earlier and split.listed == split.earlier + split.excluded:
        yield "    nothing is new: the split is empty here"


def refuse_bad_sources(config: DataSetConfig) -> None:
    """Check that all sources exist, before anything is written or deleted."""
    for uri in (*config.all_files, *config.option_files):
        storage.find_uri(uri, config.access)
    for uri in sorted({*config.listed_roots.values()}):
        storage.open_storage(uri, config.access).require_folder()


def _show_progress(ended: threading.Event, stream: TextIO) -> None:
    """Show the progress of this process: a bar on a terminal, else a log line every 10 s."""
    on_terminal, is_last = stream.isatty(), False
    # Without a terminal the bar is drawn into a buffer, and its text is logged.
    unseen: dict[str, Any] = {"file": io.StringIO(), "ncols": 0}
    where = {"file": stream, "dynamic_ncols": True} if on_terminal else unseen
    bar = tqdm(total=0, unit=" records", bar_format="reading sources [{elapsed}]", **where)
    with logging_redirect_tqdm([OURS] if on_terminal else []), bar:
        while not is_last:
            is_last = ended.wait(_DRAWN_EVERY_S if on_terminal else _LOGGED_EVERY_S)
            if PROGRESS.planned:
                bar.total, bar.bar_format = PROGRESS.planned, None
                bar.set_description("converting", refresh=False)
                shards = f"{PROGRESS.counts.shards_done}/{PROGRESS.shards_planned} shards"
                bar.set_postfix_str(f"{shards}, {PROGRESS.counts.rejected} rejected", refresh=False)
            bar.update(PROGRESS.counts.done - bar.n)
            if on_terminal:
                bar.refresh()
            elif not is_last:
                _LOG.info("%s", bar)
