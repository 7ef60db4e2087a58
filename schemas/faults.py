"""The fault codes: what each means, which exit code it leads to, and the form of its one line.

A fault is about one sample or one annotation (it becomes a `Rejected`), or about the whole run (it
becomes an exception whose text is `fault_line(...)`; the command's exit code is taken from it).
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

# Where a name holds such words too, they do not end a line of the text.
_RUNNER_SUFFIX = re.compile(r" ?\[while running '[^']*'\]\s*$", re.MULTILINE)


class Scope(enum.Enum):
    """What a fault is about."""

    SAMPLE = "sample"
    ANNOTATION = "annotation"
    RUN = "run"


class Fault(msgspec.Struct, frozen=True):
    """One code of the table.

    Attributes:
        scope: what it is about.
        meaning: one sentence for people.
        exit_code: the command's exit code for a fault about the run; 0 for rejects.
    """

    scope: Scope
    meaning: str
    exit_code: int = 0


EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_INVALID_INPUT = 3
EXIT_BUDGET = 4
EXIT_CONFLICT = 5
EXIT_STORAGE = 6
EXIT_DAMAGE = 7

_MEANINGS: Mapping[tuple[Scope, int], Mapping[str, str]] = {
    (Scope.SAMPLE, 0): {
        "E-IMG-MISSING": "the image is not in the listing of its root",
        "E-IMG-NOT-A-FILE": "a directory, FIFO, socket or device",
        "E-IMG-EMPTY": "the file has no bytes",
        "E-IMG-TOO-LARGE": "the file is larger than the limit",
        "E-IMG-TRUNCATED": "the file ends before its image does",
        "E-IMG-TYPE": "the content is no JPEG, PNG, GIF or BMP for TensorFlow",
        "E-IMG-PIXELS": "more pixels than the limit",
        "E-IMG-DAMAGED": "the image cannot be decoded",
        "E-IMG-SIZE": "width and height differ from the annotation file's",
        "E-SRC-TWICE": "several files of one root have the name of the sample",
        "E-SRC-LABEL": "nothing says which class the sample is of",
        "E-ROW-CSV": "the row has not as many cells as the header, or stray quotes",
        "E-ROW-JSON": "the line is no JSON object",
        "E-ROW-TEXT": "the row is no UTF-8",
        "E-ROW-TYPE": "a value does not fit its column's type",
        "E-ROW-KEY": "the row has no value in the column of keys",
        "E-ROW-PATH": "the row names no image below the image root",
        "E-ROW-TOO-LARGE": "a cell, or the row, is larger than the limit",
        "E-EX-TOO-LARGE": "the Example would exceed 2^31-1 bytes",
        "E-EX-EMPTY": "there is no annotation that the Example needs",
        "E-EX-FAILED": "the Example could not be built",
        "E-ANN-MISSING": "the image has no annotation file",
        "E-ANN-FILE": "the image's annotation file cannot be read as one",
    },
    (Scope.ANNOTATION, 0): {
        "E-ANN-SHAPE": "the shape is none, or none that has an area",
        "E-BOX-SHAPE": "the bbox is not four numbers",
        "E-BOX-NOT-FINITE": "the bbox holds a number beyond float64",
        "E-BOX-EMPTY": "the box has no width or height in float32",
        "E-BOX-OUTSIDE": "the box lies wholly outside the image",
        "E-SEG-SHAPE": "the segmentation is neither polygons nor an RLE",
        "E-SEG-EMPTY": "no pixel of the panoptic PNG shows any of its segments",
        "E-RLE-SIZE": "the RLE's size is not the image's",
        "E-RLE-SUM": "the RLE's counts do not sum to its pixels",
        "E-RLE-CHARS": "the compressed RLE cannot be decoded",
    },
    (Scope.ANNOTATION, EXIT_INVALID_INPUT): {
        "E-ANN-ORPHAN": "the annotation's image is not in the file",
        "E-ANN-CATEGORY": "the annotation's category is not in the file",
    },
    (Scope.RUN, EXIT_USAGE): {
        "E-ARG": "a flag or its value is wrong",
    },
    (Scope.RUN, EXIT_INVALID_INPUT): {
        "E-TAB-FORMAT": "a table is not what its file is called",
        "E-TAB-HEADER": "columns have no names, or the same, or not those needed",
        "E-ANN-JSON": "the annotation file is no valid JSON",
        "E-ANN-SECTION": "a section is missing, twice, or of no known kind",
        "E-ANN-TYPE": "a value has the wrong type",
        "E-ANN-DUPLICATE": "two images or segments share an id or name",
        "E-ANN-JOIN": "two annotation files of a split contradict",
        "E-ANN-PATH": "a file name leaves the image root",
        "E-ANN-LABELS": "the categories contradict",
        "E-ARR-HEADER": "the array file is no array",
        "E-ARR-ZIP": "the .npz file cannot be unpacked",
        "E-ARR-TYPE": "no tensor has values of that type",
        "E-ARR-COUNT": "arrays that belong together differ in length",
        "E-SET-MISSING": "most images are missing",
        "E-SET-EMPTY": "there are no samples",
        "E-SET-DUPLICATE": "two samples share a key",
        "E-SRC-SPLIT": "a field says no split that there is, or no group",
    },
    (Scope.RUN, EXIT_BUDGET): {
        "E-BUDGET": "more rejects or dropped annotations than accepted",
    },
    (Scope.RUN, EXIT_CONFLICT): {
        "E-OUT-PLAN": "the output holds another plan",
        "E-OUT-FOREIGN": "files of another run are there",
        "E-OUT-DATES": "a data set of another date must come before this one",
        "E-OUT-CONFLICT": "a file there has other content",
    },
    (Scope.RUN, EXIT_STORAGE): {
        "E-IO-AUTH": "permission denied or no credentials",
        "E-IO-NOSPACE": "the disk or quota is full",
        "E-IO-READONLY": "the output cannot be written",
        "E-IO-LIMIT": "out of memory or file descriptors",
        "E-IO-RETRIES": "storage kept failing",
        "E-SRC-CHANGED": "a source changed during or since",
        "E-JOB": "the engine refused, lost or cancelled the job",
    },
    (Scope.RUN, EXIT_DAMAGE): {
        "E-VER-MISSING": "a file of the data set is not there",
        "E-VER-SIZE": "a file has another size than it was given",
        "E-VER-FRAME": "a record's frame is none, or cut off",
        "E-VER-CRC": "a record's bytes are not those written",
        "E-VER-EXAMPLE": "a record is not what the manifest says",
        "E-VER-INDEX": "an index is not that of its shard",
        "E-VER-MANIFEST": "manifest, plan, receipts and rejects contradict",
        "E-VER-FOREIGN": "a file of our names is not the data set's",
        "E-VER-ORDER": "records are not in the order of the plan",
        "E-VER-SOURCE": "a source is not what a record was made of",
        "E-VER-IMAGE": "an image in a record is damaged",
    },
}

FAULTS: Mapping[str, Fault] = {
    code: Fault(scope, meaning, exit_code)
    for (scope, exit_code), meanings in _MEANINGS.items()
    for code, meaning in meanings.items()
}

_CODE = re.compile(rf"\b({'|'.join(FAULTS)}) ")


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A sample or an annotation that stays out of the data set, with its reason.

    Attributes:
        code: a SAMPLE or ANNOTATION code of `FAULTS`.
        stage: the step that found it, such as `read_coco`.
        split: of the sample.
        key: the sample's key; empty for an orphan annotation.
        annotation_ids: annotations lost with the sample, or the one dropped annotation.
        file_name: the image's name relative to its root.
        detail: what was found, with numbers; no roots, clocks or hosts.
        shard: such as `train-00003-of-00016`; empty before planning.
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
        """What was rejected: a sample, or an annotation alone."""
        return FAULTS[self.code].scope


@dataclass(frozen=True)
class RejectBudget:
    """How many samples may be rejected: a count, or a percentage of the listed samples.

    Attributes:
        count: samples; used when `percent` is None.
        percent: 0 to 100.
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
        """Return it as the command line takes it."""
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


def printable(text: str) -> str:
    r"""Return text with control, bidi and other non-ASCII characters escaped as `ascii` does.

    >>> printable("caf\u00e9\u202e\n")
    'caf\\xe9\\u202e\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text)


def bytes_text(size: float) -> str:
    """Return a size in bytes, three digits of it, in decimal units.

    >>> [bytes_text(n) for n in (0, 999, 1000, 152_345, 10**8, 2 * 10**12, 3 * 10**15)]
    ['0 B', '999 B', '1 kB', '152 kB', '100 MB', '2 TB', '3,000 TB']
    """
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 0.9995 * 10**power:
            value = size / 10**power
            return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"
    return f"{size:.0f} B"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "record"), counted(750, "record")
    ('1 record', '750 records')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def find_fault(text: str) -> tuple[str, str] | None:
    """Return (code, its line) of the first fault of the run in an error's text, else None.

    Runners wrap an exception's text in tracebacks and suffixes, so the line is cut out of it; the
    whole form of `fault_line` is asked for, since tracebacks quote source lines with codes.
    """
    for line in _RUNNER_SUFFIX.sub("", text).splitlines():
        remedy_start = line.rfind("; ")
        what_start = line.rfind(": ", 0, max(remedy_start, 0))
        match = _CODE.search(line, 0, max(what_start, 0))
        if match and FAULTS[match[1]].exit_code:
            return match[1], line[match.start() :]
    return None


def reject_order(rejected: Rejected) -> tuple:
    """Return the sort key of `rejected.jsonl`: every field, as text where types may mix."""
    ids = tuple(str(i) for i in rejected.annotation_ids)
    return (rejected.split, rejected.key, rejected.code, ids, msgspec.json.encode(rejected))


def at_record(file: str, number: int, offset: int, key: str | None = None) -> str:
    """Return where a record is, in words.

    Args:
        file: its file's name.
        number: of the record, from 0.
        offset: of its frame in the file, in bytes.
        key: of the record; None where it is not known.

    >>> at_record("a.tfrec", 3, 1024, "42")
    "a.tfrec record 3 (key '42') at byte 1024"
    """
    named = "" if key is None else f" (key {key!r})"
    return f"{file} record {number}{named} at byte {offset}"
