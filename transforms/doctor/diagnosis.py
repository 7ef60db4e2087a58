"""What the doctor says of one thing: fine, to be thought about, or wrong; and what mends it."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.faults import FAULTS, fault_line, find_fault, printable
from transforms.quantities import counted
from transforms.storage.local import coded

_COMMAND_LINE = "command line"
_MARK_WIDTH = 9


class Mark(enum.Enum):
    """How a thing is."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True)
class Diagnosis:
    """What was found of one thing.

    Attributes:
        mark: how it is.
        where: the thing, such as `gs://b/photos`.
        what: what was found, with numbers.
        remedy: what mends it; empty where it is fine.
        code: of `FAULTS`, about a run, where it is wrong.
    """

    mark: Mark
    where: str
    what: str
    remedy: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        """Refuse a fault that no exit code is of, and one that nothing is said to mend."""
        is_wrong = self.mark is Mark.WRONG
        if is_wrong != (self.code in FAULTS and FAULTS[self.code].exit_code > 0):
            raise ValueError(f"code must be one of a run where it is wrong, got {self.code!r}")
        if bool(self.remedy) != (self.mark is not Mark.OK):
            raise ValueError(f"remedy must be of what is not fine, got {self.remedy!r}")

    @property
    def line(self) -> str:
        """The line that says it, printable.

        >>> Diagnosis(Mark.WARNING, "clock", "90 s behind", "set it").line
        'warning  clock: 90 s behind; set it'
        """
        if self.mark is Mark.WRONG:
            text = fault_line(self.code, self.where, self.what, self.remedy)
        else:
            text = printable(f"{self.where}: {self.what}{'; ' * bool(self.remedy)}{self.remedy}")
        return f"{self.mark.value:<{_MARK_WIDTH}}{text}"


def fine(where: str, what: str) -> Diagnosis:
    """Return that a thing is as it should be."""
    return Diagnosis(Mark.OK, where, what)


def warning(where: str, what: str, remedy: str) -> Diagnosis:
    """Return what need not end a run, and may cost something."""
    return Diagnosis(Mark.WARNING, where, what, remedy)


def wrong(code: str, where: str, what: str, remedy: str) -> Diagnosis:
    """Return what would end a run with this code."""
    return Diagnosis(Mark.WRONG, where, what, remedy, code)


def of_error(error: Exception) -> Diagnosis | None:
    """Return what an error of ours says; None for one that nobody has foreseen.

    >>> of_error(RuntimeError("E-ARG gs://b: not found; give a bucket that exists"))
    Diagnosis(mark=<Mark.WRONG: 'wrong'>, where='gs://b', what='not found', \
remedy='give a bucket that exists', code='E-ARG')
    """
    if isinstance(error, OSError) and error.errno is not None:
        error = coded(error, str(error.filename or "machine"))
    found = find_fault(str(error))
    if found is not None:
        code, line = found
        where, _, rest = line.removeprefix(f"{code} ").partition(": ")
        what, _, remedy = rest.rpartition("; ")
        return wrong(code, where, what, remedy)
    if isinstance(error, ImportError):
        remedy = "install the packages of requirements.lock"
        return wrong("E-ARG", f"import {error.name}", " ".join(str(error).split()), remedy)
    if isinstance(error, ValueError):
        what, _, remedy = str(error).rpartition(": ")
        return wrong("E-ARG", _COMMAND_LINE, what or remedy, remedy if what else "see --help")
    return None


def exit_code_of(diagnoses: Iterable[Diagnosis]) -> int:
    """Return the exit code of the first that is wrong, 0 where none is."""
    return next((FAULTS[d.code].exit_code for d in diagnoses if d.mark is Mark.WRONG), 0)


def summary(diagnoses: Iterable[Diagnosis]) -> str:
    """Return the last line: how many there are of each.

    >>> summary([fine("a", "b"), warning("a", "b", "c")])
    '1 ok, 1 warning, 0 wrong: nothing would end the run'
    """
    marks = [diagnosis.mark for diagnosis in diagnoses]
    ok, warnings, wrongs = (marks.count(mark) for mark in Mark)
    told = f"{ok} ok, {counted(warnings, 'warning')}, {wrongs} wrong"
    return told if wrongs else f"{told}: nothing would end the run"
