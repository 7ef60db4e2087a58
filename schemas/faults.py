"""The fault codes with their meanings and exit codes, and the one-line form of a fault.

A fault of one sample or annotation becomes a `Rejected`. A fault of the whole run becomes an
exception with the text of `fault_line`; its code decides the command's exit code. Annotations
without image or category stop the run too, unless they may be dropped.
"""

import difflib
import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral

import msgspec

from beam_tfrec.schemas.tfrecord import is_array_record

_CLOSE = 0.7  # of difflib: a letter more, less or swapped, or a word that is cut off
# Only at the end of a line: a file's name may hold such words too.
_RUNNER_SUFFIX = re.compile(r" ?\[while running '[^']*'\]\s*$", re.MULTILINE)

Reason = tuple[str, str]
"""A fault code, and a detail."""


class Scope(enum.Enum):
    """The thing that a fault concerns."""

    SAMPLE = "sample"
    ANNOTATION = "annotation"
    RUN = "run"


class FaultCode(msgspec.Struct, frozen=True):
    """One fault code.

    Attributes:
        scope: a sample, an annotation, or the whole run.
        meaning: explanation for people, one sentence.
        exit_code: the command's exit code if the fault stops the run; 0 if it never does.
    """

    scope: Scope
    meaning: str
    exit_code: int = 0


EXIT_BUG = 1
EXIT_DIFFERENT = 1  # of diff, as of other programs that compare; a bug prints a traceback, too
EXIT_USAGE = 2
EXIT_INVALID_INPUT = 3
EXIT_BUDGET = 4
EXIT_CONFLICT = 5
EXIT_STORAGE = 6
EXIT_DAMAGE = 7

_MEANINGS: Mapping[tuple[Scope, int], Mapping[str, str]] = {
    (Scope.SAMPLE, 0): {
        "E-IMG-MISSING": "no file below the image root has this name, or the row has no image",
        "E-IMG-NOT-A-FILE": "the image is a directory, FIFO, socket or device",
        "E-IMG-EMPTY": "the file has no bytes",
        "E-IMG-TOO-LARGE": "the file is larger than the limit",
        "E-IMG-TRUNCATED": "the file ends before its image does",
        "E-IMG-TYPE": "the content is not a JPEG, PNG, GIF or BMP that TensorFlow reads",
        "E-IMG-PIXELS": "the image has more pixels than the limit",
        "E-IMG-DAMAGED": "the image cannot be decoded",
        "E-IMG-SIZE": "width and height differ from the annotation file's",
        "E-IMG-SIMILAR": "the image is a near copy of another one, which is kept",
        "E-SRC-TWICE": "several files of one root have the sample's name",
        "E-SRC-LABEL": "the sample has no class, or a number without a name",
        "E-ROW-CSV": "the row has stray quotes, or another number of cells than the header",
        "E-ROW-JSON": "the line is not a JSON object",
        "E-ROW-TEXT": "the row is not UTF-8",
        "E-ROW-TYPE": "a value does not fit its column's type",
        "E-ROW-KEY": "the row has no value in the key column or array",
        "E-ROW-PATH": "the row names no image below the image root",
        "E-ROW-TOO-LARGE": "a cell or the row is larger than the limit",
        "E-REC-DAMAGED": "the record's frame is damaged or cut off",
        "E-REC-EXAMPLE": "the record is not a tf.train.Example",
        "E-REC-KEY": "the record has no single value in the key feature",
        "E-EX-TOO-LARGE": "the Example would exceed 2^31-1 bytes",
        "E-EX-EMPTY": "an annotation that the Example needs is missing",
        "E-EX-FAILED": "the Example could not be built",
        "E-ANN-MISSING": "the image has no annotation file, or no row of one",
        "E-ANN-FILE": "the image's annotation file cannot be parsed",
    },
    (Scope.ANNOTATION, 0): {
        "E-ANN-SHAPE": "the shape is malformed, or has no area",
        "E-ANN-ROW": "the row is malformed, or has no image id or a value that is not a number",
        "E-ANN-TWICE": "the row repeats an earlier one of its image",
        "E-BOX-SHAPE": "the bbox is not four numbers",
        "E-BOX-NOT-FINITE": "the bbox holds a number beyond float64",
        "E-BOX-EMPTY": "the box has no width or height in float32",
        "E-BOX-OUTSIDE": "the box lies wholly outside the image",
        "E-SEG-SHAPE": "the segmentation is neither polygons nor an RLE",
        "E-SEG-EMPTY": "no pixel of the panoptic PNG shows any of its segments",
        "E-SEG-MISSING": "the mask has no PNG, or no box of its class and place",
        "E-RLE-SIZE": "the RLE's size is not the image's",
        "E-RLE-SUM": "the RLE's counts do not sum to its pixels",
        "E-RLE-CHARS": "the compressed RLE cannot be decoded",
    },
    (Scope.ANNOTATION, EXIT_INVALID_INPUT): {
        "E-ANN-ORPHAN": "the annotation's image is not in the file",
        "E-ANN-CATEGORY": "the annotation's category is not in the file",
    },
    (Scope.RUN, EXIT_USAGE): {"E-ARG": "a flag or its value is wrong"},
    (Scope.RUN, EXIT_INVALID_INPUT): {
        "E-TAB-FORMAT": "a table's file cannot be read in the format of its extension",
        "E-TAB-HEADER": "a needed column is missing, or columns have equal or no names",
        "E-ANN-JSON": "the annotation file is not valid JSON",
        "E-ANN-SECTION": "a section is missing, repeated, or of an unknown kind",
        "E-ANN-TYPE": "a value has the wrong type",
        "E-ANN-DUPLICATE": "two images or segments share an id or name",
        "E-ANN-JOIN": "two annotation files of a split contradict each other",
        "E-ANN-PATH": "a file name leads out of the image root",
        "E-ANN-LABELS": "classes contradict each other, or a label file cannot be used",
        "E-ARR-HEADER": "the file does not hold a readable array",
        "E-ARR-ZIP": "the .npz file cannot be unpacked",
        "E-ARR-TYPE": "no tensor has values of that type",
        "E-ARR-COUNT": "arrays that belong together differ in length",
        "E-SET-MISSING": "most images are missing",
        "E-SET-EMPTY": "there are no samples",
        "E-SET-DUPLICATE": "two samples share a key",
        "E-SRC-DAMAGED": "the rest of a TFRecord or tar file cannot be read",
        "E-SRC-SPLIT": "what decides the split has no value, an unknown one, or two",
    },
    (Scope.RUN, EXIT_BUDGET): {"E-BUDGET": "more rejects or dropped annotations than accepted"},
    (Scope.RUN, EXIT_CONFLICT): {
        "E-OUT-PLAN": "the output holds another plan",
        "E-OUT-FOREIGN": "the output holds files of another run",
        "E-OUT-DATES": "a data set of another date must come before this one",
        "E-OUT-CONFLICT": "a file in the output has other content",
    },
    (Scope.RUN, EXIT_STORAGE): {
        "E-IO-AUTH": "permission denied or no credentials",
        "E-IO-NOSPACE": "the disk or quota is full",
        "E-IO-READONLY": "the output cannot be written",
        "E-IO-LIMIT": "out of memory or file descriptors",
        "E-IO-RETRIES": "storage kept failing",
        "E-SRC-CHANGED": "a source changed during the run, or since its plan was made",
        "E-JOB": "the engine refused, lost or cancelled the job",
    },
    (Scope.RUN, EXIT_DAMAGE): {
        "E-VER-MISSING": "a file of the data set is missing",
        "E-VER-SIZE": "a file has another size than when it was written",
        "E-VER-FRAME": "a record's frame is damaged or cut off",
        "E-VER-CRC": "a record's bytes differ from those written",
        "E-VER-EXAMPLE": "a record differs from what the manifest says",
        "E-VER-INDEX": "an index does not fit its shard",
        "E-VER-MANIFEST": "manifest, plan, receipts and rejects contradict each other",
        "E-VER-FOREIGN": "a file is named like one of ours, but the data set has no such file",
        "E-VER-ORDER": "records are not in the planned order",
        "E-VER-SOURCE": "a source differs from what its record was made of",
        "E-VER-IMAGE": "an image in a record is damaged",
    },
}

FAULTS: Mapping[str, FaultCode] = {
    code: FaultCode(scope, meaning, exit_code)
    for (scope, exit_code), meanings in _MEANINGS.items()
    for code, meaning in meanings.items()
}

_CODE = re.compile(rf"\b({'|'.join(FAULTS)}) ")


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A sample or an annotation that stays out of the data set, with its reason.

    Attributes:
        code: a code of `FAULTS` with the scope SAMPLE or ANNOTATION.
        stage: step that found it, such as `read_coco`.
        split: name of the sample's split.
        key: the sample's key; empty for an orphan annotation.
        annotation_ids: ids of annotations lost with the sample, or of the one dropped annotation.
        file_name: the image's name relative to its root.
        detail: description with numbers, but without roots, times or host names.
        shard: name such as `train-00003-of-00016`; empty before planning.
    """

    code: str
    stage: str
    split: str
    key: str = ""
    annotation_ids: tuple[int | str, ...] = ()
    file_name: str = ""
    detail: str = ""
    shard: str = ""

    @property
    def scope(self) -> Scope:
        """Whether a sample was rejected, or an annotation alone."""
        return FAULTS[self.code].scope

    @property
    def has_budget(self) -> bool:
        """Whether it counts against the budget of samples: not if a flag asks to leave it out."""
        return self.scope is Scope.SAMPLE and self.code != "E-IMG-SIMILAR"

    def line(self, fate: str) -> str:
        """Return a line for logs: what was rejected and why, and what happens to it."""
        of_sample = self.scope is Scope.SAMPLE
        where = self.file_name or ("sample" if of_sample else "annotation")
        ids = f"key {self.key}" if of_sample else f"id {self.annotation_ids[0]}"
        return fault_line(self.code, f"{where} ({ids})", self.detail, fate)


@dataclass(frozen=True)
class RejectBudget:
    """How many samples may be rejected: a count, or a percentage of the listed samples.

    Attributes:
        count: number of samples; used if `percent` is None.
        percent: share of the listed samples, 0 to 100.
    """

    count: int = 0
    percent: float | None = None

    def __post_init__(self) -> None:
        """Refuse an impossible budget."""
        if self.count < 0 or not 0 <= (self.percent or 0) <= 100:
            given = self.count if self.percent is None else f"{self.percent}%"
            raise ValueError(f"a budget must be a count or 0% to 100%, got {given}: correct it")

    def allowed(self, listed: int) -> int:
        """Return how many of the listed samples may be rejected.

        >>> RejectBudget(percent=1.0).allowed(250)
        2
        """
        return self.count if self.percent is None else int(listed * self.percent / 100)

    def __str__(self) -> str:
        """Return the form that the command line takes."""
        return str(self.count) if self.percent is None else f"{self.percent:g}%"


NO_REJECTS = RejectBudget()


def fault_line(code: str, where: str, what: str, remedy: str) -> str:
    """Return the one line of a fault: `CODE where: what; remedy`, printable ASCII only.

    >>> fault_line("E-SET-EMPTY", "a\\nb.json", "no images", "check --annotations")
    'E-SET-EMPTY a\\\\nb.json: no images; check --annotations'
    """
    if code not in FAULTS:
        raise ValueError(f"code must be one of FAULTS, got {code!r}")
    return printable(f"{code} {where}: {what}; {remedy}")


def run_fault(code: str, where: str, what: str, remedy: str) -> RuntimeError:
    """Return the error that ends a run with this fault."""
    return RuntimeError(fault_line(code, where, what, remedy))


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return the remedy for an unknown word: the known one that may be meant, or another remedy.

    >>> did_you_mean("stratifed", ["stratified"], "omit it"), did_you_mean("a", ["b"], "omit it")
    ('did you mean stratified?', 'omit it')
    """
    close = difflib.get_close_matches(word, [*known], n=1, cutoff=_CLOSE)
    return f"did you mean {close[0]}?" if close else otherwise


def require_whole(**numbers: object) -> None:
    """Refuse options that are not whole numbers, as `require_at_least` does."""
    for name, number in numbers.items():
        if not isinstance(number, Integral):
            raise ValueError(f"{name} must be a whole number, got {number!r}: give one")


def require_at_least(least: int, **numbers: int | None) -> None:
    """Refuse options with numbers that are too small, or not whole.

    Args:
        least: the smallest number.
        **numbers: the numbers by the names of their options; None for one that is not given.

    Raises:
        ValueError: with the name and the number.
    """
    for name, number in numbers.items():
        if number is None:
            continue
        require_whole(**{name: number})
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}: give a larger number")


def printable(text: str) -> str:
    r"""Return text with control, bidi and other non-ASCII characters escaped as `ascii` does.

    >>> printable("caf\u00e9\u202e\n")
    'caf\\xe9\\u202e\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text)


def bytes_text(size: float) -> str:
    """Return a size as text with a decimal unit and three digits.

    >>> [bytes_text(n) for n in (0, 999, 1000, 152_345, 10**8, 2 * 10**12, 3 * 10**15)]
    ['0 B', '999 B', '1 kB', '152 kB', '100 MB', '2 TB', '3,000 TB']
    """
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 0.9995 * 10**power:
            value = size / 10**power
            return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"
    return f"{size:.0f} B"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is 1.

    >>> counted(1, "record"), counted(750, "record")
    ('1 record', '750 records')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def find_fault(text: str) -> Reason | None:
    """Return (code, fault line) of the first fault of the run in an error's text, else None.

    Runners wrap an exception's text in tracebacks and suffixes, so the line is cut out of it.
    Tracebacks also quote source lines that hold codes. So only the whole form of `fault_line`
    counts.
    """
    for line in _RUNNER_SUFFIX.sub("", text).splitlines():
        remedy_start = line.rfind("; ")
        what_start = line.rfind(": ", 0, max(remedy_start, 0))
        match = _CODE.search(line, 0, max(what_start, 0))
        if match and FAULTS[match[1]].exit_code:
            return match[1], line[match.start() :]
    return None


def reject_order(rejected: Rejected) -> tuple:
    """Return the sort key of a line of `rejected.jsonl`: all fields, as text if types may mix."""
    ids = tuple(str(i) for i in rejected.annotation_ids)
    return (rejected.split, rejected.key, rejected.code, ids, msgspec.json.encode(rejected))


def at_record(file: str, number: int, offset: int, key: str | None = None) -> str:
    """Return where a record is, in words.

    Args:
        file: name of the file.
        number: index of the record in the file, from 0.
        offset: offset of its frame in the file, in bytes; left out for an ArrayRecord file.
        key: the record's key; None if it is not known.

    >>> at_record("a.tfrec", 3, 1024, "42")
    "a.tfrec record 3 (key '42') at byte 1024"
    """
    named = "" if key is None else f" (key {key!r})"
    at = "" if is_array_record(file) else f" at byte {offset}"
    return f"{file} record {number}{named}{at}"
