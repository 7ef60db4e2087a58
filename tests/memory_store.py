"""An object store in memory, shared by simulated processes; each of their operations can fail.

Objects appear whole and once, have a generation and a CRC-32C, and can be deleted. Each operation
of a process is a numbered step. Its `Disturb` is called before and after the effect. It may kill
the process, fail the step, lose the reply, or do something else first.

    store = MemoryStore()
    process = store.start(kill_at(7, Moment.AFTER))
    with served():
        storage = open_storage(f"{process.uri}/out")

A killed process does nothing more: each further step raises an exception that none of our code
catches. Its spools are lost, like the disk of a lost machine.
"""

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar
from unittest import mock

import google_crc32c

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.transforms.storage import (
    DEFAULT_ACCESS,
    Access,
    Entry,
    NewFile,
    Span,
    Storage,
    ends_early,
)

SCHEME = "memory://"
ON_DISK = ("spool", "spool.write", "spool.close")
"""Operations on the local spool, which send no request to the store."""

T = TypeVar("T")


class Moment(Enum):
    """When a step is disturbed."""

    BEFORE = "before"
    AFTER = "after"


class Step(NamedTuple):
    """One operation of a process on the store.

    Attributes:
        number: counts the process's steps, from 1.
        operation: `stat`, `spool.publish` …
        name: name of the object, if the operation has one.
    """

    number: int
    operation: str
    name: str


Disturb = Callable[[Step, Moment], None]
"""Called before and after the effect of every step; may raise an error for the caller."""


class Killed(BaseException):
    """Raised by each step of a killed process; must not be caught."""


class ReplyLost(Exception):
    """Raised after an effect: the client got no reply, so it sends the step again."""


def undisturbed(_: Step, __: Moment) -> None:
    """Disturb nothing."""


def meanwhile_at(number: int, moment: Moment, happens: Callable[[], object]) -> Disturb:
    """Return a `Disturb` that pauses a process at a step until `happens` returns."""

    def wait(step: Step, now: Moment) -> None:
        if (step.number, now) == (number, moment):
            happens()

    return wait


def fail_at(number: int, moment: Moment, code: str) -> Disturb:
    """Return a `Disturb` that fails a step, as a storage does after its last retry."""
    line = fault_line(code, "memory", "injected", "run again to resume")
    return meanwhile_at(number, moment, lambda: _raise(RuntimeError(line)))


def kill_at(number: int, moment: Moment) -> Disturb:
    """Return a `Disturb` that kills a process at a step."""
    return meanwhile_at(number, moment, lambda: _raise(Killed()))


def _raise(error: BaseException) -> None:
    raise error


def lose_reply_of(number: int) -> Disturb:
    """Return a `Disturb` that loses a step's reply once; steps on a spool have no reply."""
    left = [number]

    def lose(step: Step, now: Moment) -> None:
        if [step.number] == left and now is Moment.AFTER and step.operation not in ON_DISK:
            left.clear()
            raise ReplyLost

    return lose


class Stored(NamedTuple):
    """An object."""

    data: bytes
    generation: int


class MemoryStore:
    """The objects, and the processes that share them. Dictionary operations are atomic."""

    def __init__(self, objects: Mapping[str, Stored] | None = None) -> None:
        self._objects = dict(objects or {})
        newest = max((stored.generation for stored in self._objects.values()), default=0)
        self._generations = itertools.count(newest + 1)
        self._processes: list[Process] = []

    def start(self, disturb: Disturb = undisturbed) -> "Process":
        """Return a new process."""
        process = Process(self, disturb)
        self._processes.append(process)  # keeps its URI valid as long as the store
        return process

    def copy(self) -> "MemoryStore":
        """Return a store that holds the same objects, generations included."""
        return MemoryStore(self._objects)

    def objects(self, below: str = "") -> dict[str, Stored]:
        """Return all objects, or those below a folder, named from there."""
        found = sorted(dict(self._objects).items())
        return {name.removeprefix(below): o for name, o in found if name.startswith(below)}

    def files(self, below: str = "") -> dict[str, bytes]:
        """Return the bytes of all objects, or of those below a folder, named from there."""
        return {name: stored.data for name, stored in self.objects(below).items()}

    def get(self, name: str) -> Stored | None:
        """Return an object, or None if it does not exist."""
        return self._objects.get(name)

    def put(self, name: str, data: bytes) -> None:
        """Write an object, or replace it."""
        self._objects[name] = Stored(data, next(self._generations))

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether it was written."""
        made = Stored(data, next(self._generations))
        return self._objects.setdefault(name, made) is made

    def remove(self, name: str) -> None:
        """Delete an object, if it exists."""
        self._objects.pop(name, None)


class Process:
    """A simulated process: its steps, and whether it is alive.

    Attributes:
        uri: root of the store for this process; `open_storage` finds it while `served`.
        steps: steps so far.
    """

    _numbers = itertools.count(1)

    def __init__(self, store: MemoryStore, disturb: Disturb) -> None:
        self.store = store
        self.steps: list[Step] = []
        self._disturb = disturb
        self._lock = threading.Lock()
        self._is_dead = False
        self.uri = f"{SCHEME}process-{next(self._numbers)}"
        _PROCESSES[self.uri] = self

    def do(self, operation: str, name: str = "", effect: Callable[[], T] = lambda: None) -> T:
        """Do one step, and disturb it as set for this process."""
        with self._lock:
            if self._is_dead:
                raise Killed
            step = Step(len(self.steps) + 1, operation, name)
            self.steps.append(step)
        try:
            while True:
                self._disturb(step, Moment.BEFORE)
                result = effect()
                with contextlib.suppress(ReplyLost):
                    self._disturb(step, Moment.AFTER)
                    return result
        except Killed:
            self._is_dead = True
            raise


_PROCESSES: "weakref.WeakValueDictionary[str, Process]" = weakref.WeakValueDictionary()


@contextlib.contextmanager
def served() -> Iterator[None]:
    """Let `open_storage` open `memory://`, instead of passing it to Beam's filesystems."""
    with mock.patch("beam_tfrec.transforms.storage.beam_filesystem.BeamStorage", MemoryStorage):
        yield


class MemoryStorage(Storage):
    """The store below a root, as a process sees it."""

    def __init__(self, root: str, _: Access = DEFAULT_ACCESS) -> None:
        self.root = root.rstrip("/")
        uri, _, path = self.root.removeprefix(SCHEME).partition("/")
        self._process = _PROCESSES[SCHEME + uri]
        self._store = self._process.store
        self._prefix = f"{path}/" if path else ""

    def list(self, prefix: str = "", *, recursive: bool = True) -> Iterator[Entry]:
        below = self._prefix + prefix
        found = self._process.do("list", prefix, lambda: self._store.objects(below))
        for name, stored in found.items():
            if recursive or "/" not in name:
                yield _entry(prefix + name, stored)
        folders = {name.partition("/")[0] for name in found if "/" in name}
        for name in () if recursive else sorted(folders):
            yield Entry(prefix + name, 0, "", kind="directory")

    def stat(self, name: str) -> Entry | None:
        found = self._get("stat", name)
        return None if found is None else _entry(name, found)

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        found = self._get("read", name)
        if found is None or (expected and str(found.generation) != expected.pin):
            raise self.changed(name, "not there")
        if span is not None and span[1] > len(found.data):
            raise self.changed(name, ends_early(len(found.data), span))
        return found.data[slice(*(span or (None,)))]

    def crc32c(self, name: str) -> int:
        found = self._get("crc32c", name)
        if found is None:
            raise self.changed(name, "not there")
        return google_crc32c.value(found.data)

    def create(self, name: str, data: bytes) -> bool:
        path = self._prefix + name
        return self._process.do("create", name, lambda: self._store.create(path, data))

    def new_file(self) -> NewFile:
        self._process.do("spool")
        return _MemoryFile(self._process, self._prefix)

    def delete(self, name: str) -> None:
        self._process.do("delete", name, lambda: self._store.remove(self._prefix + name))

    def require_folder(self) -> None:
        self._process.do("require_folder")

    def probe(self) -> None:
        self._process.do("probe")

    def _get(self, operation: str, name: str) -> Stored | None:
        return self._process.do(operation, name, lambda: self._store.get(self._prefix + name))


class _MemoryFile:
    """Bytes that are not published yet."""

    def __init__(self, process: Process, prefix: str) -> None:
        self._process = process
        self._prefix = prefix
        self._parts: list[bytes] = []
        self._is_open = True

    def write(self, parts: Sequence[bytes]) -> None:
        self._process.do("spool.write", effect=lambda: self._parts.extend(map(bytes, parts)))

    def publish(self, name: str) -> bool:
        path, data = self._prefix + name, b"".join(self._parts)
        store = self._process.store
        return self._process.do("spool.publish", name, lambda: store.create(path, data))

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._process.do("spool.close")


def _entry(name: str, stored: Stored) -> Entry:
    return Entry(name, len(stored.data), str(stored.generation), google_crc32c.value(stored.data))
