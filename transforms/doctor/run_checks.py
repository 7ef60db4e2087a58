"""Run checks side by side, each with a deadline: one that fails or hangs stops no other."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from transforms.doctor.diagnosis import Diagnosis, of_error, wrong

DEADLINE_S = 30.0
_THREAD = "doctor's check"


@dataclass(frozen=True)
class Check:
    """A look at one thing.

    Attributes:
        subject: the thing, for what is said when nothing answers.
        look: yields what is found; may raise a line of a fault.
        deadline_s: for all of it.
    """

    subject: str
    look: Callable[[], Iterable[Diagnosis]]
    deadline_s: float = DEADLINE_S


@dataclass(eq=False)
class _Running:
    """A check in its thread, which nobody waits for when the process ends.

    Attributes:
        found: what it has found so far.
        bug: an error that no check should raise.
    """

    check: Check
    found: list[Diagnosis] = field(default_factory=list)
    bug: Exception | None = None

    def __post_init__(self) -> None:
        """Start."""
        self.started_s = time.monotonic()
        self.thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
        self.thread.start()

    def diagnoses(self) -> list[Diagnosis]:
        """Return what was found, once the check has ended or its time is over."""
        left_s = self.started_s + self.check.deadline_s - time.monotonic()
        self.thread.join(max(left_s, 0))
        is_late = self.thread.is_alive()  # asked first: what it finds before it ends is not lost
        found = list(self.found)
        if is_late:
            what = f"no answer within {self.check.deadline_s:.0f} s"
            remedy = "look at the network and the storage, then run again"
            found.append(wrong("E-IO-RETRIES", self.check.subject, what, remedy))
        return found

    def _run(self) -> None:
        try:
            for diagnosis in self.check.look():
                self.found.append(diagnosis)
        except Exception as error:
            told = of_error(error)
            if told is None:
                self.bug = error
            else:
                self.found.append(told)


def run_checks(checks: Sequence[Check]) -> Iterator[Diagnosis]:
    """Yield what the checks find, in their order, as soon as those before are done.

    Raises:
        Exception: of the first check that fails as none should, when all others have been told.
    """
    running = [_Running(check) for check in checks]
    for one in running:
        yield from one.diagnoses()
    for one in running:
        if one.bug is not None:
            raise one.bug


def is_any_left() -> bool:
    """Return whether a check still waits for an answer, so that Python's own exit would wait too.

    Threads that it has started are no daemons.
    """
    return any(thread.name == _THREAD for thread in threading.enumerate())
