"""The section on reading: each tool reads its own data set of the same photos, in one process."""

import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from contenders import CONTENDERS, ENVIRONMENTS, HERE, OUR_PYTHON, PROJECT, Data
from figures import Section, Target
from measure import run_measured
from rounds import in_turn, median_ratio, say, write_into
from writing import Options

COLUMNS = [
    *("", "in order, images/s", "CPU us an image", "shuffled, images/s", "CPU us an image"),
    "in order, x tf.data",
]


@dataclass(frozen=True)
class Reader:
    """A way to read: a name in `peers/read.py`.

    Attributes:
        writer: the contender that writes its data set.
        python: its interpreter.
    """

    writer: str
    python: Path


READERS = {
    "ours": Reader("ours", OUR_PYTHON),
    "ours_tf_data": Reader("ours", OUR_PYTHON),
    "tf_data": Reader("ours", ENVIRONMENTS["tensorflow"].python),
    "webdataset": Reader("webdataset", ENVIRONMENTS["tensorflow"].python),
    "grain": Reader("array_record", ENVIRONMENTS["arrow"].python),
    "grain_ahead": Reader("array_record", ENVIRONMENTS["arrow"].python),
    "hugging_face": Reader("hugging_face", ENVIRONMENTS["arrow"].python),
    "mosaicml": Reader("mosaicml", ENVIRONMENTS["torch"].python),
    "litdata": Reader("litdata", ENVIRONMENTS["torch"].python),
}


@dataclass(frozen=True)
class Read:
    """One reading of all samples: seconds by the clock and of CPU."""

    wall_s: float
    cpu_s: float


def run_reading(options: Options) -> Section:
    """Write the data sets of all readers, then read them in turn, in order and shuffled."""
    data, rounds = options.draw(options.images), options.rounds or 5
    parent = data.outputs or data.folder.parent
    folder = Path(tempfile.mkdtemp(prefix="reading-", dir=parent))
    names = [name for name, reader in READERS.items() if reader.writer in options.names]
    try:
        faults = _write_all(names, data, folder, options.limit_s)
        expected = (data.images, data.photo_bytes())
        orders = {
            shuffled: _read_all(names, folder, shuffled, rounds, expected, options.limit_s, faults)
            for shuffled in (False, True)
        }
    finally:
        shutil.rmtree(folder)
    conditions = (
        f"{data.images:,} photos, {rounds} rounds, medians; one process, images stay encoded,"
        " start-up left out."
    )
    return reading_section(names, orders, faults, data.images, conditions)


def reading_section(
    names: list[str],
    orders: dict[bool, list[dict[str, Read]]],
    faults: dict[str, str],
    images: int,
    conditions: str,
) -> Section:
    """Return the table; `orders` are the rounds in order (False) and shuffled (True)."""
    section = Section(conditions, COLUMNS)
    walls = [{name: read.wall_s for name, read in runs.items()} for runs in orders[False]]
    for name in names:
        if name in faults:
            section.rows.append([name, f"cannot run: {faults[name][:200]}"])
            continue
        cells = [name]
        for shuffled in (False, True):
            reads = [runs[name] for runs in orders[shuffled]]
            wall_s = statistics.median(read.wall_s for read in reads)
            cpu_s = statistics.median(read.cpu_s for read in reads)
            cells += [f"{images / wall_s:,.0f}", f"{cpu_s / images * 1e6:,.0f}"]
        ratio = median_ratio(walls, "tf_data", name)
        section.rows.append([*cells, "–" if ratio is None else f"{ratio:.2f}"])
    speed_up = median_ratio(walls, "tf_data", "ours")
    section.targets = [Target("ours / tf.data, images/s in order", speed_up, 1, at_least=True)]
    return section


def _write_all(names: list[str], data: Data, folder: Path, limit_s: float) -> dict[str, str]:
    """Write each data set once; return the faults of readers without one (a failed writer)."""
    faults: dict[str, str] = {}
    for writer in dict.fromkeys(READERS[name].writer for name in names):
        out = folder / writer
        out.mkdir()
        say(f"writing what {writer} reads")
        _, fault = write_into(CONTENDERS[writer], data, out, limit_s)
        if fault:
            faults |= {n: f"{writer}: {fault}" for n in names if READERS[n].writer == writer}
    return faults


def _read_all(
    names: list[str],
    folder: Path,
    shuffled: bool,
    rounds: int,
    expected: tuple[int, int],
    limit_s: float,
    faults: dict[str, str],
) -> list[dict[str, Read]]:
    """Read in interleaved rounds after an unmeasured one; add to `faults`."""
    found: list[dict[str, Read]] = []
    for number in range(rounds + 1):
        runs: dict[str, Read] = {}
        for name in in_turn(names, number):
            if name in faults:
                continue
            read = _read_once(name, folder, shuffled, expected, limit_s)
            if isinstance(read, str):
                faults[name] = read
            else:
                runs[name] = read
            say(f"reading{' shuffled' * shuffled}, round {number}/{rounds}: {name}: {read}")
        if number:
            found.append(runs)
    return found


def _read_once(
    name: str, folder: Path, shuffled: bool, expected: tuple[int, int], limit_s: float
) -> Read | str:
    """Read a data set once; return an error if it cannot be read completely."""
    reader = READERS[name]
    command = [str(reader.python), str(HERE / "peers/read.py"), name, str(folder / reader.writer)]
    try:
        run = run_measured(command + ["--shuffled"] * shuffled, PROJECT, limit_s)
    except OSError as error:
        return f"cannot start: {error}"
    if run.exit_code != 0:
        return f"exit {run.exit_code}: {run.last_line}"
    return parse_read(run.last_line, expected)


def parse_read(line: str, expected: tuple[int, int]) -> Read | str:
    """Return the figures that a reader printed, or an error if samples or bytes are missing.

    >>> parse_read("2 30 0.5 0.25", (2, 30))
    Read(wall_s=0.5, cpu_s=0.25)
    >>> parse_read("2 29 0.5 0.25", (2, 30))
    'read 2 samples of 29 bytes, not 2 of 30'
    """
    samples, image_bytes, wall_s, cpu_s = line.split()
    if (int(samples), int(image_bytes)) != expected:
        wanted = f"{expected[0]:,} of {expected[1]:,}"
        return f"read {int(samples):,} samples of {int(image_bytes):,} bytes, not {wanted}"
    return Read(float(wall_s), float(cpu_s))
