"""A command's frame: one line a fault, exit codes, interruptions, logging. Imports no Beam."""

import contextlib
import functools
import logging
import os
import re
import shlex
import shutil
import signal
import string
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn, TextIO

from pipelines.progress_display import stop_drawing
from pipelines.start import end_by_signal
from schemas.faults import EXIT_BUG, FAULTS, fault_line, find_fault, printable
from transforms.progress import PROGRESS
from transforms.storage import retries

_LOG = logging.getLogger(__name__)
OUR_LOGGERS = ("pipelines", "transforms")
_RETRY_SAID_EVERY_S = 60.0
_OF_ONE_RUN = ("--overwrite", "--plan")
_IN_A_STEP = "[while running '"  # as Beam says; what a step finds wrong with a flag is a fault line
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

# A job service's text; Dataflow's; that of a download; a request's, by gRPC.
_SAID = re.compile(
    r"\APipeline \S+ failed in state \w+: ([^\n]*)"
    r"|\ADataflow pipeline failed\. State: \w+, Error:\n(?!None\b)\s*([^\n]*)"
    r"|\A(Unable to fetch remote [^\n]*)"
    r'|^\s*details = "([^"]*)"',
    re.MULTILINE,
)
_OF_ENGINES = {"DataflowRuntimeException", "DataflowJobAlreadyExistsError"}
_OF_REQUESTS = ("grpc.", "google.api_core.", "google.auth.")
_PYTHON_FAILED = "Traceback (most recent call last)"
# The job service's own traceback, where a worker of its own has gone.
_WORKER_LOST = re.compile(r"^RuntimeError: Channel closed prematurely\.\s*\Z", re.MULTILINE)
_LONGEST = 300


@dataclass
class JobElsewhere:
    """The job that this process waits for, or none; an interruption does not end it.

    Attributes:
        page: where it is seen.
        cancel: the command that ends it.
        temporary: folder of the runner's temporary files, deleted when this process ends.
    """

    page: str = ""
    cancel: str = ""
    temporary: str = ""


JOB_ELSEWHERE = JobElsewhere()


def accepting_command(program: str, argv: Sequence[str], budget: str = "--max_rejected") -> str:
    """Return the command line that accepts `COUNT` rejects, or drops, by the flag of their budget.

    >>> accepting_command("beam-tfrec coco", ["--output", "o", "--max_rejected", "1"])
    'beam-tfrec coco --output o --max_rejected COUNT'
    >>> flags = ["--plan", "json", "--overwrite", "--output", "o"]
    >>> accepting_command("beam-tfrec coco", flags)
    'beam-tfrec coco --output o --max_rejected COUNT'
    """
    kept: list[str] = []
    left_out = ""
    for argument in argv:
        is_value = left_out == budget or not argument.startswith("--")
        if left_out in (budget, "--plan") and is_value:
            left_out = ""
            continue
        flag, equals, _ = argument.partition("=")
        left_out = flag if flag in (budget, *_OF_ONE_RUN) else ""
        if not left_out:
            kept.append(argument)
        elif equals:
            left_out = ""
    return f"{program} {' '.join(map(quoted, kept))} {budget} COUNT"


def quoted(argument: str) -> str:
    """Return a shell word of printable ASCII: a message escapes everything else.

    >>> print(quoted("a b"), quoted("caf\u00e9"))
    'a b' $'caf\\xc3\\xa9'
    """
    if printable(argument) == argument:
        return shlex.quote(argument)
    raw = os.fsencode(argument)
    plain = set(map(ord, string.ascii_letters + string.digits + "/._-=,:"))
    return "$'" + "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in raw) + "'"


def shards_done() -> str:
    """Return how far a run is, and how it is gone on with."""
    if JOB_ELSEWHERE.page:
        return f"the job goes on: {JOB_ELSEWHERE.page}; to end it: {JOB_ELSEWHERE.cancel}"
    done, planned = PROGRESS.shards_finished(), PROGRESS.shards_planned
    shards = f"{done} of {planned} shards done" if planned else "before the first shard"
    return f"{shards}; run again to resume"


def guarded(
    run: Callable[[Sequence[str]], None],
    argv: Sequence[str],
    how_far: Callable[[], str] = shards_done,
) -> int:
    """Run a command and return its exit code; a fault prints as one line.

    Args:
        run: the command.
        argv: its arguments.
        how_far: what is said when it is interrupted.
    """
    interrupted = functools.partial(_interrupted, how_far)
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
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
    if fault is None and isinstance(error, ValueError) and _IN_A_STEP not in text:
        fault = "E-ARG", fault_line("E-ARG", "command line", *_what_and_remedy(str(error)))
    for said, spent in _SPENT.items():
        if fault is None and said in text:
            fault = "E-IO-LIMIT", fault_line("E-IO-LIMIT", *spent)
    fault = fault or engine_fault(error)
    _say_no_more()
    if fault is None:
        for line in text.splitlines():
            say(line, stderr)
        return EXIT_BUG
    code, line = fault
    say(line, stderr)
    return FAULTS[code].exit_code


def _say_no_more() -> None:
    """Keep shards that are still being built from writing below the line of the fault."""
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _what_and_remedy(message: str) -> tuple[str, str]:
    what, _, remedy = message.rpartition(": ")
    return (what, remedy) if what else (message, "see --help")


def _interrupted(how_far: Callable[[], str], number: int, _: FrameType | None) -> NoReturn:
    said = "run again"
    with contextlib.suppress(Exception):
        stop_drawing()
        said = how_far()
    if JOB_ELSEWHERE.temporary:
        shutil.rmtree(JOB_ELSEWHERE.temporary, ignore_errors=True)
    end_by_signal(number, said)


class _Handler(logging.StreamHandler):
    """Says nothing of a reader who has gone."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the record."""


class _OneRetryAMinute(logging.Filter):
    """Passes one line a minute on retries: an outage stops all threads at once."""

    _said_at_s = -_RETRY_SAID_EVERY_S

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be printed."""
        if record.name != retries.__name__:
            return True
        is_due = record.created >= self._said_at_s + _RETRY_SAID_EVERY_S
        if is_due:
            self._said_at_s = record.created
        return is_due


class _PrintableFormatter(logging.Formatter):
    """Keeps control and bidi characters of names out of terminals and logs."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).splitlines()))


def _thread_ended(error: threading.ExceptHookArgs) -> None:
    _LOG.debug("a thread ended", exc_info=error.exc_value)


def _log_to_stderr() -> None:
    handler = _Handler(sys.stderr)
    handler.addFilter(_OneRetryAMinute())
    handler.setFormatter(_PrintableFormatter("%(message)s"))
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # it logs every error twice
    logging.getLogger().handlers = [logging.NullHandler()]  # job services tell their errors there
    threading.excepthook = _thread_ended  # as the workers do when their runner has gone
    level = os.environ.get("BEAM_TFREC_LOG", "INFO")
    if level not in logging.getLevelNamesMapping():
        raise ValueError(f"BEAM_TFREC_LOG must be a level, got {level!r}: give DEBUG or WARNING")
    for name in OUR_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


def say(line: str, stream: TextIO) -> None:
    """Print a line, escaped; a reader who has gone has no say in the data set."""
    try:  # in one piece: other threads are logging
        print(f"{printable(line)}\n", end="", file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def engine_fault(error: BaseException) -> tuple[str, str] | None:
    """Return (code, line) where the engine or the way to it failed; else None.

    A bug in one of our steps comes with Python's traceback inside the engine's text: it is a bug,
    and keeps all of its text.

    >>> engine_fault(RuntimeError("Pipeline job-1 failed in state FAILED: worker lost"))[1]
    'E-JOB engine: worker lost; see its log, then run again to resume'
    """
    for cause in _causes(error):
        text = str(cause)
        said = _SAID.search(text)
        if said and _WORKER_LOST.search(text):
            return _line("a worker has ended: channel closed prematurely")
        if _PYTHON_FAILED in text:
            return None
        if not (said or _is_of_an_engine(cause)):
            continue
        first_line = text.strip().partition("\n")[0]
        what = next(filter(None, said.groups()), "") if said else first_line
        what = what.strip()[:_LONGEST] or "no answer from its job service"
        return _line(what)
    return None


def _line(what: str) -> tuple[str, str]:
    where = JOB_ELSEWHERE.page or "engine"
    return "E-JOB", fault_line("E-JOB", where, what, "see its log, then run again to resume")


def _is_of_an_engine(error: BaseException) -> bool:
    """Return whether Google's client, a request or Dataflow's runner raised it, by its class.

    By name, since Google's packages are there only where their extra is installed.
    """
    return any(
        kind.__name__ in _OF_ENGINES or f"{kind.__module__}.".startswith(_OF_REQUESTS)
        for kind in type(error).__mro__
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        around = error.__context__ if isinstance(error, RuntimeError) else None  # as Beam raises
        error = error.__cause__ or around
