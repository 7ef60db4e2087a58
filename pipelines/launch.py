"""Run a pipeline from the command line: progress, one line a fault, exit codes."""

import contextlib
import ctypes
import gc
import logging
import os
import shlex
import signal
import string
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Generic, NoReturn, Protocol, TextIO, TypeVar

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.child_processes import end_children
from pipelines.engine_faults import engine_fault
from pipelines.engines import (
    JOB_ELSEWHERE,
    build_nothing,
    check_engine,
    follow,
    is_dry_run,
    makes_template,
    prepare,
    runner_of,
    runs_workers_here,
)
from pipelines.progress_display import showing_progress, stop_drawing
from pipelines.summary import summarize
from schemas.faults import EXIT_BUG, FAULTS, fault_line, find_fault, printable
from schemas.layouts import Layout
from schemas.manifest import MANIFEST_NAME, Manifest, read_manifest
from schemas.shards import ShardNames
from transforms.commit import find_complete
from transforms.earlier_sets import Since, find_earlier_sets
from transforms.output_files import EXCLUDED_NAME, remove_output
from transforms.progress import PROGRESS
from transforms.storage import (
    Access,
    Storage,
    find_uri,
    join_uri,
    name_below,
    open_storage,
    read_uri,
)
from transforms.storage.local import coded

_LOG = logging.getLogger(__name__)
_COLLECT_AFTER_OBJECTS = 500_000
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BLOCK_BYTES = 128 * 2**20
_KEPT_BYTES = 2**30
_STDERR = 2
_OUR_LOGGERS = ("pipelines", "transforms")
_OUT_OF_MEMORY = "memory", "out of memory", "lower --bytes_in_flight, or give more"
_OUT_OF_THREADS = "threads", "no more can be started", "raise ulimit -u, or give more memory"
_OUT_OF_FILES = "files", "too many open files", "raise the limit on open files (ulimit -n)"
_SPENT = {
    "MemoryError": _OUT_OF_MEMORY,
    "can't allocate lock": _OUT_OF_MEMORY,
    "can't start new thread": _OUT_OF_THREADS,
    "Too many open files": _OUT_OF_FILES,
}
"""What Python and libraries say, wherever they are, when a limit of the machine is reached."""


class Config(Protocol):
    """What `execute` asks of a pipeline's frozen configuration."""

    @property
    def images(self) -> Mapping[str, str]:
        """URI per source root."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """URI of the annotation file per split."""

    @property
    def output(self) -> str:
        """URI of the data set."""

    @property
    def layout(self) -> Layout:
        """What an Example holds."""

    @property
    def names(self) -> ShardNames:
        """How shard files are called."""

    @property
    def exclude(self) -> str:
        """URI of a `rejected.jsonl` to leave out, or empty."""

    @property
    def access(self) -> Access:
        """How stores are reached."""

    @property
    def accept_command(self) -> str:
        """The command that accepts `COUNT` rejects."""

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership."""


B = TypeVar("B", contravariant=True)
C = TypeVar("C", bound=Config)
V = TypeVar("V", bound=PipelineOptions)


@dataclass(frozen=True)
class RunConfig(Generic[C]):
    """A pipeline's configuration, and what is asked of this run alone.

    Attributes:
        config: of the pipeline.
        overwrite: delete an earlier data set first.
        trust_manifest: take a complete output of the same options for up to date.
        since: which earlier data sets it adds to; None for none.
        waits: stay until the job has ended, and say what it made.
    """

    config: C
    overwrite: bool = False
    trust_manifest: bool = False
    since: Since | None = None
    waits: bool = True


class Build(Protocol[B]):
    """A pipeline's `build`."""

    def __call__(self, root: beam.Pipeline, config: B) -> beam.PCollection[Manifest]:
        """Build the graph."""


def execute(run: RunConfig[C], build: Build[C], beam_args: Sequence[str]) -> None:
    """Run a pipeline until its data set is committed, unless it is complete already.

    Raises:
        RuntimeError: the fault that ended the run, as a line of `E-…` somewhere in its text.
    """
    options = prepare(_Options(list(beam_args)))
    check_engine(options, _uris(run), waits=run.waits)
    if is_dry_run(options):  # which asks no store
        _run_graph(partial(build, config=run.config), options, waits=False)
        return
    config = _with_earlier_sets(run)
    output = open_storage(config.output, config.access)
    started_s = time.monotonic()
    if run.overwrite or not run.trust_manifest:
        _check_sources(config)
    output.probe()
    if run.overwrite:
        config = _overwrite(config, output)
    if _is_complete(config, output, trust_manifest=run.trust_manifest):
        _say(f"already complete: {join_uri(config.output, MANIFEST_NAME)}", sys.stdout)
        if makes_template(options):
            _run_graph(build_nothing, options, waits=False)
        return
    _check_sources(config)
    PROGRESS.reset()
    spare_the_collector()
    keep_freed_memory()
    loggers = [logging.getLogger(name) for name in _OUR_LOGGERS]
    with showing_progress(PROGRESS, loggers, known=runs_workers_here(options)):
        _run_graph(partial(build, config=config), options, waits=run.waits)
    if run.waits and not makes_template(options):
        _say_what_was_made(config.output, output, time.monotonic() - started_s)


def _is_complete(config: Config, output: Storage, *, trust_manifest: bool) -> bool:
    complete = find_complete(
        output,
        config.options(),
        config.annotations,
        config.images,
        config.exclude,
        config.names,
        trust_manifest=trust_manifest,
        access=config.access,
    )
    return complete is not None


def _run_graph(
    build: Callable[[beam.Pipeline], object], options: PipelineOptions, *, waits: bool
) -> None:
    with _temporary_folder_told():
        pipeline = beam.Pipeline(runner=runner_of(options), options=options)
    build(pipeline)
    with _beam_held_back():
        for line in follow(pipeline.run(), options, waits=waits):
            _say(line, sys.stdout)


def _say_what_was_made(uri: str, output: Storage, seconds: float) -> None:
    manifest = read_manifest(output.read(MANIFEST_NAME), join_uri(uri, MANIFEST_NAME))
    for line in summarize(manifest, uri, seconds).splitlines():
        _say(line, sys.stdout)


def _uris(run: RunConfig[C]) -> list[str]:
    """Return everything that workers read and write."""
    config = run.config
    earlier = run.since.names if run.since else ()
    given = (*config.images.values(), *config.annotations.values(), config.exclude, *earlier)
    return [*filter(None, given), config.output]


def _with_earlier_sets(run: RunConfig[C]) -> C:
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
    )
    return replace(config, earlier=earlier)  # type: ignore[type-var]


class _Options(PipelineOptions):
    """Beam's options, each view made once: Beam asks for some 400 and parses all flags for each."""

    def view_as(self, cls: type[V]) -> V:
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


def _check_sources(config: Config) -> None:
    """Find the files and folders that the user named, before anything is made or deleted."""
    for uri in (*config.annotations.values(), *filter(None, [config.exclude])):
        find_uri(uri, config.access)
    for uri in config.images.values():
        open_storage(uri, config.access).require_folder()


def _overwrite(config: C, output: Storage) -> C:
    """Delete the data set that is there; what is to be excluded by its rejects is kept."""
    if not config.exclude or name_below(config.output, config.exclude) is None:
        remove_output(output, config.names, config.images)
        return config
    excluded = read_uri(config.exclude, config.access)
    remove_output(output, config.names, config.images, excluded)
    output.create(EXCLUDED_NAME, excluded)  # where there was no data set of ours
    kept = join_uri(config.output, EXCLUDED_NAME)
    command = config.accept_command
    for form in ("--exclude {}", "--exclude={}"):
        given, instead = form.format(config.exclude), form.format(kept)
        command = command.replace(_quoted_words(given), _quoted_words(instead))
    return replace(config, exclude=kept, accept_command=command)  # type: ignore[type-var]


def _quoted_words(text: str) -> str:
    flag, space, path = text.partition(" ")
    return f"{flag}{space}{_quoted(path)}" if flag == "--exclude" else _quoted(text)


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
    """Keep what Beam prints of an error, traceback and all, out of our one line a fault."""
    if _LOG.isEnabledFor(logging.DEBUG):
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def _say(line: str, stream: TextIO) -> None:
    """Print a line, escaped; a reader who has gone has no say in the data set."""
    try:  # in one piece: other threads are logging
        print(f"{printable(line)}\n", end="", file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def spare_the_collector() -> None:
    """Keep Python's cycle collector from walking through Beam again and again.

    Samples make no cycles, but their number triggers collections of everything that was imported.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 20)


def keep_freed_memory() -> None:
    """Have the C library keep large freed blocks for the next ones, where it is glibc.

    Beam copies samples some fifteen times, in buffers of megabytes; returning each to the kernel,
    which clears it for the next one, took a tenth of the time of planning.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def accepting_command(program: str, argv: Sequence[str]) -> str:
    """Return the command line that accepts `COUNT` rejects.

    >>> accepting_command("beam-tfrec coco", ["--output", "o", "--max_rejected", "1"])
    'beam-tfrec coco --output o --max_rejected COUNT'
    """
    kept: list[str] = []
    skip = False
    for argument in argv:
        if argument in ("--max_rejected", "--overwrite"):
            skip = argument == "--max_rejected"
        elif skip or argument.startswith("--max_rejected="):
            skip = False
        else:
            kept.append(argument)
    return f"{program} {' '.join(map(_quoted, kept))} --max_rejected COUNT"


def _quoted(argument: str) -> str:
    """Return a shell word of printable ASCII: a message escapes everything else.

    >>> print(_quoted("a b"), _quoted("caf\u00e9"))
    'a b' $'caf\\xc3\\xa9'
    """
    if printable(argument) == argument:
        return shlex.quote(argument)
    raw = os.fsencode(argument)
    plain = set(map(ord, string.ascii_letters + string.digits + "/._-=,:"))
    return "$'" + "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in raw) + "'"


def guarded(run: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Run a command and return its exit code; a fault prints as one line."""
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, _interrupted)
    stderr = sys.stderr
    try:
        _log_to_stderr()
        run(argv)
        return 0
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic in obstore is no Exception
        sys.stderr = open(os.devnull, "w")  # workers in this process may yet print theirs
        return _report(error, stderr)


def _report(error: BaseException, stderr: TextIO) -> int:
    text = "".join(traceback.format_exception(error))
    fault = find_fault(str(error)) or find_fault(text)
    _LOG.debug("%s", text)
    if fault is None and isinstance(error, ValueError):
        fault = "E-ARG", fault_line("E-ARG", "command line", *_what_and_remedy(str(error)))
    for said, spent in _SPENT.items():
        if fault is None and said in text:
            fault = "E-IO-LIMIT", fault_line("E-IO-LIMIT", *spent)
    fault = fault or engine_fault(error)
    _say_no_more()
    if fault is None:
        for line in text.splitlines():
            _say(line, stderr)
        return EXIT_BUG
    code, line = fault
    _say(line, stderr)
    return FAULTS[code].exit_code


def _say_no_more() -> None:
    """Keep shards that are still being built from writing below the line of the fault."""
    for name in _OUR_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _what_and_remedy(message: str) -> tuple[str, str]:
    what, _, remedy = message.rpartition(": ")
    return (what, remedy) if what else (message, "see --help")


def _interrupted(number: int, _: FrameType | None) -> NoReturn:
    """End at once: every file there is whole, so a crash and an exit are the same."""
    try:
        stop_drawing()
        # In one piece: other threads are logging.
        os.write(_STDERR, f"\ninterrupted; {_how_far()}\n".encode())
    finally:  # whatever has become of stderr
        end_children()
        os._exit(128 + number)


def _how_far() -> str:
    if JOB_ELSEWHERE.page:
        return f"the job goes on: {JOB_ELSEWHERE.page}; to end it: {JOB_ELSEWHERE.cancel}"
    done, planned = PROGRESS.shards_done, PROGRESS.shards_planned
    shards = f"{done} of {planned} shards done" if planned else "before the first shard"
    return f"{shards}; run again to resume"


class _Handler(logging.StreamHandler):
    """Says nothing of a reader who has gone."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the record."""


class _PrintableFormatter(logging.Formatter):
    """Keeps control and bidi characters of names out of terminals and logs."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).splitlines()))


def _thread_ended(error: threading.ExceptHookArgs) -> None:
    _LOG.debug("a thread ended", exc_info=error.exc_value)


def _log_to_stderr() -> None:
    handler = _Handler(sys.stderr)
    handler.setFormatter(_PrintableFormatter("%(message)s"))
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # it logs every error twice
    logging.getLogger().handlers = [logging.NullHandler()]  # job services tell their errors there
    threading.excepthook = _thread_ended  # as the workers do when their runner has gone
    level = os.environ.get("BEAM_TFREC_LOG", "INFO")
    if level not in logging.getLevelNamesMapping():
        raise ValueError(f"BEAM_TFREC_LOG must be a level, got {level!r}: give DEBUG or WARNING")
    for name in _OUR_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
