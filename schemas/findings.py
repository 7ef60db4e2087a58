"""What is wrong with data that was looked at: every finding counted, the first of a kind kept."""

from dataclasses import dataclass

import msgspec

from schemas.faults import fault_line

MAX_KEPT = 20
"""Of each code; what is beyond is counted alone."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        code: one of `FAULTS`.
        where: the file, and record, key and byte where it is about one.
        what: is wrong, with both values.
        remedy: what to do.
    """

    code: str
    where: str
    what: str
    remedy: str

    @property
    def line(self) -> str:
        """Its one line."""
        return fault_line(self.code, self.where, self.what, self.remedy)


class Findings(msgspec.Struct):
    """Findings in the order in which they were made; those of parts add up.

    Attributes:
        kept: the first of each code, by code.
        counts: all of them, by code.
    """

    kept: dict[str, list[Finding]] = {}
    counts: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Return whether anything is wrong."""
        return bool(self.counts)

    def add(self, code: str, where: str, what: str, remedy: str) -> None:
        """Note a finding."""
        self.counts[code] = self.counts.get(code, 0) + 1
        kept = self.kept.setdefault(code, [])
        if len(kept) < MAX_KEPT:
            kept.append(Finding(code, where, what, remedy))

    def extend(self, other: "Findings") -> None:
        """Append another's findings."""
        for code, count in other.counts.items():
            self.counts[code] = self.counts.get(code, 0) + count
            kept = self.kept.setdefault(code, [])
            kept += other.kept[code][: MAX_KEPT - len(kept)]

    def lines(self) -> list[str]:
        """Return a line a finding, and one for those of a code that were not kept."""
        lines: list[str] = []
        for code, kept in self.kept.items():
            lines += (finding.line for finding in kept)
            if more := self.counts[code] - len(kept):
                lines.append(f"{code}: {more} more")
        return lines


@dataclass
class Verified:
    """What was looked at, and what is wrong with it.

    Attributes:
        findings: what is wrong.
        files: looked at.
        records: whole ones that were read, or that indexes tell of where shards were not read.
        bytes: read of shards.
        notes: what else is to be said, a line each.
    """

    findings: Findings
    files: int = 0
    records: int = 0
    bytes: int = 0
    notes: tuple[str, ...] = ()

    def extend(self, other: "Verified") -> None:
        """Append what was looked at."""
        self.findings.extend(other.findings)
        self.files += other.files
        self.records += other.records
        self.bytes += other.bytes
        self.notes += other.notes


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
