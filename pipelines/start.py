"""What a command does before it imports anything: a small run is mostly the import of Beam.

Here and not in the modules of the commands, so that whoever imports those as a library keeps
Python and Beam as they were.
"""

import gc
import importlib
import logging
import os
import signal
import stat
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

PIPELINES = ("coco", "folder", "table", "sidecar", "pairs", "arrays")
"""Those that make data sets, with Beam."""

_KNOWN_BEAM = "2.77."  # in which all below is as it says here; any other is imported whole
_LEFT_OUT = (
    "apache_beam.io.gcp.bigquery",
    "apache_beam.io.gcp.gcsfilesystem",  # our own storage reads gs://
    "bson",  # of pymongo
    "google.cloud.dataflow",
)
"""What Beam imports where it is installed, and does without where it is not."""

_LONG_BYTES = 2**26
"""Of an annotation file that is worth a process: to start one takes what decoding 30 MB does."""

_SAMPLING_MS = 10  # behind a long step a run waits for half of this on average; Beam's are 200

_WORKERS = "apache_beam.runners.portability.fn_api_runner.worker_handlers"
"""Keeps side inputs, which a run reads once each, and walks through all their objects to size them.
"""

Specs = tuple[set[Any], set[Any]]
"""States and timers of a DoFn, as Beam declares them."""


class _NotInstalled:
    """Says of what a run in this process has no use for that it is not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        """Raise what Beam expects of a missing package."""
        if name in _LEFT_OUT:
            raise ModuleNotFoundError(f"{name} is left out while Beam is imported", name=name)


class _RememberedSpecs:
    """What Beam finds out of each DoFn, found out once.

    It looks at the signatures of some thirty methods each time, and asks eight times a step.
    """

    def __init__(self, find_specs: Callable[[Any], Specs]) -> None:
        self._find_specs = find_specs
        self._known: dict[int, tuple[weakref.ref[Any], Specs]] = {}  # not all DoFns have a hash

    def __call__(self, dofn: Any) -> Specs:
        known = self._known.get(id(dofn))
        if known is None or known[0]() is not dofn:
            known = self._known[id(dofn)] = weakref.ref(dofn), self._find_specs(dofn)
        return known[1]


def begin(command: str, arguments: Sequence[str]) -> None:
    """Make ready for the import of a command's modules, and do it for Beam if that can be short.

    Args:
        command: name of the module of `pipelines` that has its `main`.
        arguments: of the command.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Beam is imported just ends it
    if command not in (*PIPELINES, "plan"):
        return
    # Of NumPy's library, whose threads would turn at full speed until they are sure of no work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()  # imports make no garbage, but make the collector look; `launch` goes on
    if "apache_beam" in sys.modules:
        return
    if "coco" in (command, *arguments[:1]):
        _begin_reading(arguments)
    if _is_local(arguments):
        _import_beam()


def begin_module() -> None:
    """Make ready for `python -m pipelines.COMMAND`, if that is how this process was started."""
    if sys.argv[:1] != ["-m"]:
        return
    arguments = sys.argv[1:]
    module = sys.orig_argv[len(sys.orig_argv) - len(arguments) - 1].removeprefix("-m")
    if module.startswith("pipelines."):
        begin(module.removeprefix("pipelines."), arguments)


def _is_local(arguments: Sequence[str]) -> bool:
    """Return whether nothing but this process and local files is spoken of.

    >>> _is_local(["--output", "o"]), _is_local(["--output=gs://b/o"]), _is_local(["--runner=x"])
    (True, False, False)
    """
    return not any("://" in word or word.split("=")[0] == "--runner" for word in arguments)


def _begin_reading(arguments: Sequence[str]) -> None:
    """Have long annotation files read beside this process, which is busy importing Beam.

    Where samples are made in this process; what is guessed wrongly here is read in vain.
    """
    if any(word.startswith(("--runner", "--direct_")) for word in arguments):
        return
    if files := _long_files(arguments):
        importlib.import_module("transforms.processes.coco_reader_process").begin_reading(files)


def _long_files(arguments: Sequence[str]) -> list[str]:
    """Return the long ones of the annotation files that are spoken of, if each split has but one.

    Several of a split are not gone through ahead of time.
    """
    words: list[str] = []
    flag = ""
    for word in arguments:
        value = word
        if word.startswith("-"):
            flag, _, value = word.partition("=")
        if flag == "--annotations" and value:
            words.append(value)
    parts = [word.partition("=") for word in words]
    if len({before if is_split else "" for before, is_split, _ in parts}) < len(words):
        return []
    return [path for path in (behind or before for before, _, behind in parts) if _is_long(path)]


def _is_long(path: str) -> bool:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # the command says what is wrong with it
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size >= _LONG_BYTES


def _import_beam() -> None:
    """Import Beam without the clients of databases and of Google's services, a third of it."""
    # 10 ms, which commands without Beam do not wait for.
    from importlib.metadata import PackageNotFoundError, version

    try:
        if not version("apache-beam").startswith(_KNOWN_BEAM):
            return
    except PackageNotFoundError:  # as where packages are bundled without what tells of them
        return
    finder, beam_logger = _NotInstalled(), logging.getLogger("apache_beam")
    level = beam_logger.level
    sys.meta_path.insert(0, finder)
    beam_logger.setLevel(logging.ERROR)  # it warns of what is missing
    try:
        importlib.import_module("apache_beam")
    finally:
        sys.meta_path.remove(finder)
        beam_logger.setLevel(level)
    _hasten_beam()


def _hasten_beam() -> None:
    """Spare a run what Beam does again and again, and waits for."""
    userstate: Any = importlib.import_module("apache_beam.transforms.userstate")
    userstate.get_dofn_specs = _RememberedSpecs(userstate.get_dofn_specs)
    samplers: Any = importlib.import_module("apache_beam.runners.worker.statesampler")
    samplers.StateSampler = partial(samplers.StateSampler, sampling_period_ms=_SAMPLING_MS)
    workers: Any = importlib.import_module(_WORKERS)
    workers.STATE_CACHE_SIZE_MB = 0
