"""A section's figures: kept as JSON, shown as Markdown, put into the README between marks."""

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A figure with a limit.

    Attributes:
        what: such as `ours / webdataset, wall time`.
        measured: the figure; None if it could not be measured.
        limit: the limit.
        at_least: whether the figure has to reach the limit; else it must not exceed it.
        unit: unit of both, such as `s`.
    """

    what: str
    measured: float | None
    limit: float
    at_least: bool = False
    unit: str = ""

    def verdict(self) -> str:
        """Return `met`, `MISSED` or `not measured`.

        >>> Target("ours / theirs", 0.7, 0.6).verdict(), Target("rate", 9, 5, True).verdict()
        ('MISSED', 'met')
        """
        if self.measured is None:
            return "not measured"
        met = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "met" if met else "MISSED"

    def row(self) -> list[str]:
        """Return the cells of a table's row."""
        bound = f"at {'least' if self.at_least else 'most'} {self.limit:,g}{self._unit()}"
        measured = "–" if self.measured is None else f"{self.measured:,.3g}{self._unit()}"
        if self.measured is not None and abs(self.measured) >= 1000:
            measured = f"{self.measured:,.0f}{self._unit()}"
        return [self.what, measured, bound, self.verdict()]

    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""


@dataclass
class Section:
    """The results of one part of the benchmark.

    Attributes:
        conditions: number of photos and rounds, and the machine.
        columns: the table's head; the first is empty, for names.
        rows: cells as they are shown.
        targets: figures with limits.
        remarks: sentences below the table.
    """

    conditions: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the section as Markdown."""
        parts = [self.conditions]
        if self.rows:
            parts.append(table(self.columns, self.rows))
        if self.targets:
            head = ["target", "measured", "wanted", ""]
            parts.append(table(head, [target.row() for target in self.targets]))
        return "\n\n".join(parts + self.remarks) + "\n"


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; short rows are filled up.

    >>> print(table(["", "s"], [["a|b", "1"], ["failed"]]))
    | | s |
    |---|---|
    | a\\|b | 1 |
    | failed | |
    """
    head = "|" + "|".join(f" {column} " if column else " " for column in columns) + "|"
    lines = [head, "|" + "---|" * len(columns)]
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        cells += [""] * (len(columns) - len(row))
        lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    return "\n".join(lines)


def number(value: float | None, form: str) -> str:
    """Return a figure as it is shown; a dash for None."""
    return "–" if value is None else format(value, form)


def load(path: Path) -> dict[str, Section]:
    """Read a results file; return {} if there is none."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: _section(values) for name, values in found.items()}


def _section(values: dict) -> Section:
    targets = [Target(**target) for target in values.pop("targets")]
    return Section(**values, targets=targets)


def save(path: Path, sections: dict[str, Section]) -> None:
    """Write a results file; sections that were not measured again stay."""
    merged = {**load(path), **sections}
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = {name: asdict(section) for name, section in merged.items()}
    path.write_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def fill_in(text: str, sections: dict[str, Section]) -> str:
    """Return a document with the text between each section's marks replaced by its figures.

    >>> found = {"main": Section("5 photos.")}
    >>> print(fill_in("a\\n<!-- bench: main -->\\nold\\n<!-- end -->\\nb", found))
    a
    <!-- bench: main -->
    5 photos.
    <!-- end -->
    b
    """
    for name, section in sections.items():
        begin, end = f"<!-- bench: {name} -->\n", "<!-- end -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            _, _, after = rest.partition(end)
            text = before + begin + section.markdown() + end + after
    return text


def machine() -> str:
    """Describe the machine and its load before the rounds in a line."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    text = Path("/proc/cpuinfo").read_text()
    models = [line.split(": ")[1] for line in text.splitlines() if line.startswith("model name")]
    memory = f"{pages / 2**30:.0f} GB"
    cores = f"{os.cpu_count()} cores ({models[0] if models else platform.machine()})"
    system = f"{platform.system()}, Python {platform.python_version()}"
    return f"{cores}, {memory}, {system}, load average {os.getloadavg()[0]:.1f} before"
