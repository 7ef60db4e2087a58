"""The console command `beam-tfrec`, and what all commands share: flags, faults, exit codes.

This module imports no Beam.
"""

import argparse
import atexit
import contextlib
import enum
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

from tqdm import tqdm

from beam_tfrec import __version__
from beam_tfrec.schemas import faults
from beam_tfrec.schemas.shards import is_split_name
from beam_tfrec.transforms.progress import PROGRESS
from beam_tfrec.transforms.storage import Access, check_uri, retries

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PIPELINES = {
    "coco": "Convert COCO photos and annotations to sharded .tfrec files.",
    "folder": "Convert folders of images, one folder a class, to sharded .tfrec files.",
    "table": "Convert rows of tables, with or without images, to sharded .tfrec files.",
    "sidecar": "Convert images with one JSON file each to sharded .tfrec files.",
    "voc": "Convert Pascal VOC's images and XML files to sharded .tfrec files.",
    "yolo": "Convert YOLO's images and label files to sharded .tfrec files.",
    "openimages": "Convert Open Images' photos and CSV tables to sharded .tfrec files.",
    "webdataset": "Convert tar files in the form of WebDataset to sharded .tfrec files.",
    "pairs": "Convert pairs of low- and high-resolution images to sharded .tfrec files.",
    "arrays": "Convert NumPy arrays to sharded .tfrec files.",
    "records": "Reshard, merge or divide data sets and other TFRecord files.",
}
"""Commands that make data sets with Beam, and what each does."""
COMMANDS = {
    **PIPELINES,
    "plan": "Print what one of these would make, without making it: beam-tfrec plan coco ...",
    "similar": "Find near copies of a source's images: beam-tfrec similar coco ...",
    "verify": "Check data sets, or any TFRecord files, for damage.",
    "show": "Print features and records of a data set or TFRecord file.",
    "diff": "Compare two data sets record by record.",
    "report": "Write an HTML page with counts, histograms and pictures of data sets or files.",
}
OURS = logging.getLogger("beam_tfrec")
"""The logger above those of our modules."""
A_SET = "a data set (a folder or URI with a manifest.json)"
SETS_OR_FILES = f"{A_SET}, a TFRecord or ArrayRecord file of any origin, or a folder of such"

Choices = type[enum.Enum] | Sequence[str]
T = TypeVar("T", bound="DataclassInstance")

_LOG = logging.getLogger(__name__)
_RETRY_SAID_EVERY_S = 60.0
_STDERR = 2
_TO_RESUME = "; free some space, then run again to resume"  # of a full disk below the output
_IN_A_STEP = "[while running '"  # of Beam; a ValueError of a step is a bug
_OUT_OF_MEMORY = "memory", "out of memory", "lower --bytes_in_flight, or give more"
_SPENT = {
    "MemoryError": _OUT_OF_MEMORY,
    "can't allocate lock": _OUT_OF_MEMORY,
    "can't start new thread": ("threads", "no more can be started", "raise ulimit -u or memory"),
    "Too many open files": ("files", "too many open files", "raise the limit (ulimit -n)"),
}
"""Messages of Python and libraries when a limit of the machine is reached."""


@dataclass
class JobElsewhere:
    """The job on another machine that this process waits for. An interruption does not end it.

    Attributes:
        page: URL of the job; empty for no job.
        cancel: command that ends the job.
    """

    page: str = ""
    cancel: str = ""


JOB_ELSEWHERE = JobElsewhere()


class FlagParser(argparse.ArgumentParser):
    """An argument parser that raises `ValueError`, takes no abbreviations and lists its flags."""

    def __init__(self, name: str, more: str = "", *, short: bool = False, **options: Any) -> None:
        """Make a parser without flags.

        Args:
            name: the command's name.
            more: text of the help after the command's line in `COMMANDS`.
            short: leave rare flags out of the help.
            **options: options of argparse.
        """
        does = f"{COMMANDS.get(name, '')} {more}"
        super().__init__(f"beam-tfrec {name}", description=does, allow_abbrev=False, **options)
        self.flags: list[argparse.Action] = []
        self.short = short

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise ValueError(f"{message}: see --help")

    def path(self, name: str, help: str, metavar: str = "PATH", **options: Any) -> None:
        """Add an argument of a path, which has no flag; see `argparse` for options."""
        self.add_argument(name, type=not_empty, metavar=metavar, help=help, **options)

    def group(self, title: str, *, exclusive: bool = False, rare: bool = False) -> "FlagGroup":
        """Return a new group of flags in the help.

        Args:
            title: the group's title.
            exclusive: only one of its flags may be given.
            rare: all its flags are rare.
        """
        titled = self.add_argument_group(title)
        group = titled.add_mutually_exclusive_group() if exclusive else titled
        return FlagGroup(self, group.add_argument, rare)


@dataclass(frozen=True)
class FlagGroup:
    """Adds flags to a group, each with its name and help.

    Attributes:
        parser: the group's parser.
        add_argument: argparse's own method of the group.
        rare: whether only the whole help shows the group.
    """

    parser: FlagParser
    add_argument: Callable[..., argparse.Action]
    rare: bool = False

    def add(self, name: str, help: str, *, rare: bool = False, **options: Any) -> None:
        """Add a flag; its help says the default, or that the flag is required.

        Args:
            name: the flag's name.
            help: the flag's help; `argparse.SUPPRESS` for a flag that is only refused.
            rare: only the whole help shows the flag.
            **options: options of argparse.
        """
        default = options.get("default")
        if options.get("required"):
            help = f"{help} (required)"
        elif "default" not in help and help != argparse.SUPPRESS:
            unset = "off" if options.get("action") == "store_true" else "none"
            text = unset if default in (None, []) else getattr(default, "value", default)
            help = f"{help} (default {text})"
        if self.parser.short and (rare or self.rare):
            help = argparse.SUPPRESS
        self.parser.flags.append(self.add_argument(name, help=help, **options))

    def switch(self, name: str, help: str, **options: Any) -> None:
        """Add a flag without a value."""
        self.add(name, help, action="store_true", **options)

    def text(self, name: str, help: str, metavar: str, **options: Any) -> None:
        """Add a flag of a text that is not empty."""
        self.add(name, help, type=not_empty, metavar=metavar, **options)

    def number(self, name: str, help: str, default: float | None = None, **options: Any) -> None:
        """Add a flag of a number, a whole one unless `type` is float."""
        options.setdefault("type", int)
        self.add(name, help, metavar="N", default=default, **options)

    def several(self, name: str, help: str, metavar: str, **options: Any) -> None:
        """Add a flag of several texts that are not empty; it may be repeated."""
        options |= {"nargs": "+", "action": "extend", "default": []}
        self.add(name, help, type=not_empty, metavar=metavar, **options)

    def choice(
        self, name: str, help: str, choices: Choices, default: Any = None, **options: Any
    ) -> None:
        """Add a flag of one of several texts, or of the values of an enum."""
        if isinstance(choices, type):
            options |= {"action": _ToMember, "const": choices}
            default = default and choices(default)
            choices = [choice.value for choice in choices]
        self.add(name, help, choices=choices, default=default, **options)


class _ToMember(argparse.Action):
    """Stores the enum member of a value."""

    def __call__(self, _: object, flags: argparse.Namespace, value: Any, __: object = None) -> None:
        """Set the flag."""
        setattr(flags, self.dest, self.const(value))


def with_underscores(argument: str) -> str:
    """Return an argument with underscores for the hyphens in a flag's name.

    >>> with_underscores("--num-shards=train-a=4")
    '--num_shards=train-a=4'
    """
    name, equals, value = argument.partition("=")
    if not name.startswith("--") or " " in name:
        return argument
    return f"--{name[2:].replace('-', '_')}{equals}{value}"


def not_empty(text: str) -> str:
    """Return a flag's value, which may not be empty."""
    if not text:  # such as an unset variable of a shell script
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def config_of(kind: type[T], flags: argparse.Namespace, **others: Any) -> T:
    """Return a configuration whose fields have the values of the flags of the same names.

    Args:
        kind: class of the configuration.
        flags: as parsed; a flag that was not given leaves the field's default.
        **others: values of other fields, or other values.
    """
    names = {part.name for part in fields(kind)}
    given = {name: value for name, value in vars(flags).items() if value is not None}
    return kind(**{name: given[name] for name in names & given.keys()} | others)


def add_reading_flags(parser: FlagParser) -> FlagGroup:
    """Add the flags for reading from stores, and return their group."""
    group = parser.group("Google Cloud Storage", rare=True)
    credentials = "send no credentials, for public buckets"
    unset = "default: Application Default Credentials"
    group.switch("--anonymous", f"{credentials} ({unset})")
    payer = "project that pays for requests to requester-pays buckets (default: the bucket's)"
    group.text("--billing_project", payer, "PROJECT")
    return group


def reading_access(flags: argparse.Namespace, uris: Sequence[str]) -> Access:
    """Check URIs to read, and return the access that the flags of `add_reading_flags` ask for."""
    for uri in uris:
        check_uri(uri)
    access = config_of(Access, flags)
    access.refuse_unused((), uris, "")
    return access


def parse_several_per_split(
    name: str, values: Sequence[str], bare: str = ""
) -> dict[str, tuple[str, ...]]:
    """Return the values per split of `train=a train=b val=c`, bare ones under `bare`.

    >>> parse_several_per_split("annotations", ["train=a.json", "b.json"], bare="train")
    {'train': ('a.json', 'b.json')}

    Raises:
        ValueError: when a value is empty, or its split has capitals.
    """
    per_split: dict[str, tuple[str, ...]] = {}
    for value in values:
        split, equals, rest = value.partition("=")
        if equals and not is_split_name(split) and is_split_name(split.lower()):
            remedy = f"write {split.lower()}=, or put ./ before a path"
            raise ValueError(f"{name}: splits are lower case, got {value!r}: {remedy}")
        if not equals or not is_split_name(split):
            split, rest = bare, value
        if not rest:
            raise ValueError(f"{name} of {split or 'all splits'} must not be empty: give a value")
        per_split[split] = (*per_split.get(split, ()), rest)
    return per_split


def run_command(argv: Sequence[str]) -> None:
    """Run the command that the first argument names: `run` of the module of that name."""
    command, *arguments = argv or [""]
    names, usage = COMMANDS, "beam-tfrec COMMAND ..."
    if command == "plan":  # a run's command with one more flag
        command, *arguments = arguments or [""]
        names, usage = PIPELINES, "beam-tfrec plan COMMAND ..."
        arguments = ["--plan", *arguments]
    if command in ("-h", "--help", ""):
        lines = [f"  {name:10} {does}" for name, does in names.items()]
        more = "Flags of a command: beam-tfrec COMMAND --help"
        for line in (f"usage: {usage}", "", *lines, "", more):
            say(line, sys.stdout if command else sys.stderr)
        sys.exit(0 if command else faults.EXIT_USAGE)
    if command == "--version":
        say(f"beam-tfrec {__version__}")
        return
    if command not in names:
        others = f"give one of {', '.join(names)}; see --help"
        remedy = faults.did_you_mean(command, [*names, "--help", "--version"], others)
        raise ValueError(f"unknown command {command!r}: {remedy}")
    module = importlib.import_module(f"beam_tfrec.pipelines.{command}")
    end = [*arguments, "--"].index("--")  # paths may follow
    module.run([*map(with_underscores, arguments[:end]), *arguments[end:]])


def main(*command: str) -> NoReturn:
    """Run the command that this process's arguments give, and exit.

    Args:
        command: name of the command; without it, the first argument is the name.
    """
    code = faults.EXIT_BUG
    # This handler runs after Beam's, and skips the rest of Python's exit. Threads of gRPC or Arrow
    # that still run would abort it (1 in 60 runs with two processes, Python 3.11).
    atexit.register(lambda: _end(code))
    code = guarded(run_command, [*command, *sys.argv[1:]])
    if code:
        _end(code)  # at once: other threads of the failed run would print after the fault
    sys.exit()


def guarded(run: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Run a command and return its exit code; a fault prints as one line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    try:
        _log_to_stderr()
        run(argv)
        return 0
    except SystemExit as ended:  # after a help text, or with the code of damage or a difference
        with contextlib.suppress(OSError):  # `| head` has closed it
            sys.stdout.flush()
        return int(ended.code or 0)
    except BaseException as error:  # a panic in obstore is no Exception
        return _report(error)


def say(line: str, stream: TextIO | None = None) -> None:
    """Print a line, escaped. A closed stream does not end the run."""
    stream = stream or sys.stdout
    try:  # in one piece: other threads are logging
        print(f"{faults.printable(line)}\n", end="", file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _report(error: BaseException) -> int:
    text = "".join(traceback.format_exception(error))
    _LOG.debug("%s", text)
    OURS.setLevel(logging.CRITICAL)  # other threads log nothing after the fault
    fault = faults.find_fault(str(error)) or faults.find_fault(text)
    if fault is None and isinstance(error, ValueError) and _IN_A_STEP not in text:
        what, _, remedy = str(error).rpartition(": ")
        line = (what, remedy) if what else (remedy, "see --help")
        fault = "E-ARG", faults.fault_line("E-ARG", "command line", *line)
    for said, spent in _SPENT.items():
        if fault is None and said in text:
            fault = "E-IO-LIMIT", faults.fault_line("E-IO-LIMIT", *spent)
    if fault is None:
        for line_of_text in text.splitlines():
            say(line_of_text, sys.stderr)
        return faults.EXIT_BUG
    code, message = fault
    made = PROGRESS.counts
    left = PROGRESS.planned - made.done
    if message.endswith(_TO_RESUME) and made.done and left > 0:
        needed = faults.bytes_text(made.bytes / made.done * left)
        message = f"{message.removesuffix(_TO_RESUME)}, about {needed} more are needed{_TO_RESUME}"
    say(message, sys.stderr)
    return faults.FAULTS[code].exit_code


def _interrupted(number: int, _: FrameType | None) -> NoReturn:
    """Print the progress, and exit with code 128 + `number`.

    Every output file is complete, so no clean-up is needed.
    """
    said = "run again"
    with contextlib.suppress(Exception):
        tqdm.get_lock().acquire(timeout=0.2)  # no bar is drawn any more
        said = _how_far()
    signal.signal(signal.SIGALRM, lambda *_: _end(128 + number))
    signal.alarm(2)  # seconds: standard error may be a full pipe
    with contextlib.suppress(OSError):
        os.write(_STDERR, f"\ninterrupted; {said}\n".encode())  # in one piece: others log too
    _end(128 + number)


def _how_far() -> str:
    if JOB_ELSEWHERE.page:
        return f"the job goes on: {JOB_ELSEWHERE.page}; to end it: {JOB_ELSEWHERE.cancel}"
    if not PROGRESS.shards_planned:
        return "run again"  # verify and report have nothing to resume
    done = f"{PROGRESS.counts.shards_done} of {PROGRESS.shards_planned} shards done"
    return f"{done}; run again to resume"


def _end(code: int) -> NoReturn:
    """End this process and its children, such as Prism or a job server, at once."""
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread or the child has ended meanwhile
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGTERM)
    os._exit(code)


class _Handler(logging.StreamHandler):
    """Prints log records, but retries once a minute: an outage stops all threads at once."""

    _retry_said_at_s = -_RETRY_SAID_EVERY_S

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to print a record."""
        if record.name == retries.__name__:
            if record.created < self._retry_said_at_s + _RETRY_SAID_EVERY_S:
                return False
            self._retry_said_at_s = record.created
        return True

    def format(self, record: logging.LogRecord) -> str:
        """Return the record without control and bidi characters of names."""
        return "\n".join(map(faults.printable, super().format(record).splitlines()))

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the record: the stream is closed."""


def _log_to_stderr() -> None:
    # Beam's threads fail when their engine has gone.
    threading.excepthook = lambda error: _LOG.debug("a thread ended", exc_info=error.exc_value)
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # it logs every error twice
    logging.getLogger().handlers = [logging.NullHandler()]  # job services log their errors there
    level = os.environ.get("BEAM_TFREC_LOG", "INFO")
    if level not in logging.getLevelNamesMapping():
        raise ValueError(f"BEAM_TFREC_LOG must be a level, got {level!r}: give DEBUG or WARNING")
    OURS.handlers = [_Handler(sys.stderr)]
    OURS.setLevel(level)
    OURS.propagate = False


if __name__ == "__main__":
    main()
