"""Sections of programs that measure themselves: figures of their output, against targets."""

import re
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace

from contenders import HERE, OUR_PYTHON, PEERS_PYTHON, PROJECT
from figures import Section, Target
from rounds import say
from writing import Options

NUMBER = r"([\d.,]*\d)"
LIMIT_S = 3600
AS_MODULES = ("decode",)


@dataclass(frozen=True)
class Figure:
    """A figure that a program prints.

    Attributes:
        column: its heading.
        after: pattern of the text after the number.
        limit: the target, if any.
        at_least: whether it has to reach the limit.
    """

    column: str
    after: str
    limit: float | None = None
    at_least: bool = False

    def find(self, line: str) -> float | None:
        """Return the figure of a line, None if the line has none.

        >>> Figure("us", "us a sample").find("1,000 samples: 6.4 us a sample")
        6.4
        """
        found = re.search(NUMBER + r"\s*" + self.after, line)
        return float(found[1].replace(",", "")) if found else None


@dataclass(frozen=True)
class Program:
    """A module of this folder, and the figures of the line it prints."""

    module: str
    figures: tuple[Figure, ...] = ()

    def lines(self, *arguments: str) -> tuple[list[str], str | None]:
        """Run it; return its lines, and an error if it failed."""
        say(f"{self.module}.py {' '.join(arguments)}")
        script = [str(HERE / f"{self.module}.py")]
        if self.module in AS_MODULES:
            script = ["-m", f"benchmarks.{self.module}"]
        found = subprocess.run(
            [str(OUR_PYTHON), *script, *arguments],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        lines = [line.strip() for line in found.stdout.splitlines() if line.strip()]
        if found.returncode:
            last = (found.stderr.strip() or found.stdout.strip()).split("\n")[-1]
            return lines, f"exit {found.returncode}: {last}"
        return lines, None


SAMPLES = Program(
    "samples",
    (
        Figure("us of CPU a sample", "us", 8),
        Figure("bytes a sample", "bytes a sample", 1300),
        Figure("s of CPU", "s of CPU"),
        Figure("peak MB", "MB"),
    ),
)
PLAN = Program("plan", (Figure("s", r"s, peak", 8), Figure("peak MB", "MB", 1000)))
COST = Program(
    (
        Figure("bytes encoded", "bytes encoded", 450),
        Figure("bytes over all group-bys", "bytes over all", 1300),
    ),
)
STORE_TARGETS = (
    ("the command, marginal", "images/s", 1, 1500, True),
    ("the command, marginal", "x one reader", 2, 25, True),
    ("the transfer, marginal", "us of our CPU an image", 3, 250, False),
)
"""A row and a figure of it: name, column, limit, and whether the figure has to reach it."""
OF_PILLOW, OF_ONE_CORE = 1.15, 1.85
LINEAR = 1.10
"""How much more of time a sample may take when there are ten times as many."""


def run_planning(options: Options) -> Section:
    """Plan one, two, five and ten million generated samples."""
    unit = 20_000 if options.quick else 1_000_000
    section = _section(SAMPLES, "Generated samples of 200 B of fields, planned in process.")
    costs: list[float] = []
    for samples in (unit, 2 * unit, 5 * unit, 10 * unit):
        lines, fault = SAMPLES.lines(str(samples), "--pinned")
        _add(section, SAMPLES, f"{samples:,}", lines, fault)
        cost = next(filter(None, map(SAMPLES.figures[0].find, lines)), None)
        costs += [] if cost is None else [cost]
    joined = Program(SAMPLES.module, tuple(replace(each, limit=None) for each in SAMPLES.figures))
    _add(section, joined, f"{unit:,}, joined with a listing first", *joined.lines(str(unit)))
    growth = costs[-1] / costs[0] if len(costs) > 1 else None
    what = "time a sample, of the most samples / of the fewest"
    section.targets.append(Target(what, growth, LINEAR))
    return section


def run_annotations(options: Options) -> Section:
    """Read an annotation file of 450 MB, 835,000 annotations, until the first shard is begun."""
    images = 1_200 if options.quick else 120_000
    folder = options.data_dir / f"annotations-{images}"
    draw = [str(PEERS_PYTHON), str(HERE / "generate.py"), "--out", str(folder)]
    draw += ["--images", str(images), "--annotations-only", "--sparse-images"]
    say(f"annotations: {folder}")
    subprocess.run(draw, check=True, stdout=sys.stderr)
    size = (folder / "instances.json").stat().st_size
    conditions = (
        f"{images:,} images, an annotation file of {size / 1e6:,.0f} MB, until a shard is begun."
    )
    section = _section(PLAN, conditions)
    for number in range(1 if options.quick else 3):
        lines, fault = PLAN.lines(str(folder / "images"), str(folder / "instances.json"))
        _add(section, PLAN, f"run {number + 1}", lines[-1:], fault)
    return section


def run_store(options: Options) -> Section:
    """Read photos from a bucket that delays each answer by 30 ms."""
    rounds = 1 if options.quick else options.rounds or 3
    photos = options.draw(5000).folder
    lines, fault = Program("latency").lines("--rounds", str(rounds), "--photos", str(photos))
    return store_section(lines, fault)


def store_section(lines: list[str], fault: str | None) -> Section:
    """Return the program's output, and the medians of the command's rates as targets."""
    section = Section("A bucket on the same machine that answers after 30 ms.")
    section.remarks = [paragraphs(lines), *([f"latency.py cannot run: {fault}"] if fault else [])]
    rows = table_rows(lines)
    for name, what, column, limit, at_least in STORE_TARGETS:
        cells = [row[column] for row in rows if row[0] == name]
        values = [value for cell in cells if (value := leading(cell)) is not None]
        measured = statistics.median(values) if values else None
        section.targets.append(Target(f"a bucket: {name}, {what}", measured, limit, at_least))
    return section


def run_decoding(options: Options) -> Section:
    """Decode, resize, turn and draw masks: against bare calls of Pillow, on one core and two."""
    flags = ["--images", "50", "--rounds", "2"] if options.quick else []
    lines, fault = Program("decode").lines("--data-dir", str(options.data_dir), *flags)
    return decoding_section(lines, fault)


def decoding_section(lines: list[str], fault: str | None) -> Section:
    """Return the program's output, and its ratios as targets."""
    section = Section("Modes that decode: CPU of an image, and the command on one core and two.")
    section.remarks = [paragraphs(lines), *([f"decode.py cannot run: {fault}"] if fault else [])]
    for row in table_rows(lines):
        of_cores = re.search(r": ([\d.]+) x \(at least", row[3])
        ratio = leading(row[3])
        if of_cores:
            what, measured = f"{row[0]}, 2 cores / 1, images/s", float(of_cores[1])
            section.targets.append(Target(what, measured, OF_ONE_CORE, at_least=True))
        elif ratio is not None:
            section.targets.append(Target(f"{row[0]}, ours / Pillow, CPU", ratio, OF_PILLOW))
    return section


def table_rows(lines: list[str]) -> list[list[str]]:
    """Return the cells of all rows of Markdown tables.

    >>> table_rows(["x", "| | s |", "|---|---|", "| a | 1 |"])
    [['', 's'], ['a', '1']]
    """
    rows = [line for line in lines if line.startswith("|") and not line.startswith("|-")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def leading(cell: str) -> float | None:
    """Return the number that a cell begins with.

    >>> leading("1,234 (1,200 to 1,300)"), leading("–")
    (1234.0, None)
    """
    found = re.match(NUMBER, cell)
    return float(found[1].replace(",", "")) if found else None


def paragraphs(lines: list[str]) -> str:
    """Return lines as Markdown: a table's lines stay together, others are paragraphs."""
    text = ""
    for before, line in zip(["", *lines], lines, strict=False):
        together = before.startswith("|") and line.startswith("|")
        text += ("\n" if together else "\n\n") + line
    return text.strip()


def run_cost(options: Options) -> Section:
    """Encode a sample of seven boxes."""
    section = _section(COST, "A COCO sample of seven boxes.")
    lines, fault = COST.lines()
    _add(section, COST, "sample", lines, fault)
    return section


def _section(program: Program, conditions: str) -> Section:
    return Section(conditions, ["", *(figure.column for figure in program.figures)])


def _add(
    section: Section, program: Program, name: str, lines: list[str], fault: str | None
) -> None:
    """Add the figures of a run's lines, each from the first line that has it, and their targets."""
    if fault:
        section.rows.append([name, f"cannot run: {fault[:200]}"])
    values = [
        None if fault else next((v for line in lines if (v := figure.find(line)) is not None), None)
        for figure in program.figures
    ]
    if not fault:
        section.rows.append([name, *("–" if v is None else f"{v:,g}" for v in values)])
    section.targets += [
        Target(f"{name}: {figure.column}", value, figure.limit, figure.at_least)
        for figure, value in zip(program.figures, values, strict=True)
        if figure.limit is not None
    ]
