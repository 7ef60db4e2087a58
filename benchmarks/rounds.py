"""Run contenders in interleaved rounds, and compare them within each."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from contenders import CONTENDERS, HERE, PEERS_PYTHON, PROJECT, Contender, Data
from measure import Run, run_measured


@dataclass
class Results:
    """Rounds of runs, and the contenders that failed.

    Attributes:
        rounds: for each round, the runs by contender.
        failures: error of a contender's failed run; it takes no part in later rounds.
    """

    rounds: list[dict[str, Run]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, name: str, quantity: str) -> float | None:
        """Return the median of one quantity of a contender's runs."""
        values = [getattr(runs[name], quantity) for runs in self.rounds if name in runs]
        return statistics.median(values) if values else None

    def ratio(self, name: str, base: str) -> float | None:
        """Return the ratio of the times of `name` and `base`: see `median_ratio`."""
        walls = [{key: run.wall_s for key, run in runs.items()} for runs in self.rounds]
        return median_ratio(walls, name, base)


def median_ratio(rounds: list[dict[str, float]], name: str, base: str) -> float | None:
    """Return the median over the rounds of `name` / `base`, each taken within its round.

    A machine that slows down slows both sides of a round, so the ratio stays. The ratio of two
    medians could compare one contender's good rounds with another's bad ones.

    >>> median_ratio([{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 9, "b": 9}], "a", "b")
    0.75
    """
    ratios = [walls[name] / walls[base] for walls in rounds if name in walls and base in walls]
    return statistics.median(ratios) if ratios else None


def in_turn(names: list[str], number: int) -> list[str]:
    """Return the names, a different one first in each round.

    >>> in_turn(["a", "b", "c"], 1)
    ['b', 'c', 'a']
    """
    first = number % max(len(names), 1)
    return names[first:] + names[:first]


def run_rounds(names: list[str], data: Data, rounds: int, limit_s: float) -> Results:
    """Run every contender once a round, in turn.

    An unmeasured copy comes first: it warms the page cache, and the memory of the outputs.
    """
    results = Results()
    (data.folder / "instances.json").read_bytes()
    run_once(CONTENDERS["cat"], data, limit_s)
    for number in range(rounds):
        runs: dict[str, Run] = {}
        for name in in_turn(names, number):
            if name in results.failures:
                continue
            run, fault = run_once(CONTENDERS[name], data, limit_s)
            if run is not None and fault is None:
                runs[name] = run
                note = f"{run.wall_s:.2f} s, {run.peak_mb:,.0f} MB"
            else:
                note = results.failures[name] = str(fault)
            say(f"{data.folder.name}, round {number + 1}/{rounds}: {name}: {note}")
        results.rounds.append(runs)
    return results


def run_once(contender: Contender, data: Data, limit_s: float) -> tuple[Run | None, str | None]:
    """Run a contender into a fresh folder; return the run and its fault.

    Data that earlier runs left in the page cache is written to disk first, so that this run does
    not wait for it.
    """
    out = Path(tempfile.mkdtemp(prefix="out-", dir=data.outputs or data.folder.parent))
    try:
        return write_into(contender, data, out, limit_s)
    finally:
        shutil.rmtree(out)


def write_into(
    contender: Contender, data: Data, out: Path, limit_s: float
) -> tuple[Run | None, str | None]:
    """Run a contender into a folder that is kept."""
    os.sync()
    try:
        run = run_measured(contender.command_for(data, out), PROJECT, limit_s)
    except OSError as error:
        return None, f"cannot start: {error}"
    if run.exit_code is None:
        return run, f"took more than {limit_s:.0f} s"
    if run.exit_code != 0:
        return run, f"exit {run.exit_code}: {run.last_line}"
    return run, contender.fault(data, out)


def draw(
    data_dir: Path, images: int, scale: int = 1, distinct: int = 0, outputs: Path | None = None
) -> Data:
    """Draw photos once; later calls find them."""
    name = f"photos-{images}" + (f"-x{scale}" if scale != 1 else "")
    numbers = ["--images", str(images), "--scale", str(scale)]
    if 0 < distinct < images:
        name += f"-of-{distinct}"
        numbers += ["--distinct", str(distinct)]
    folder = data_dir / name
    script = [str(PEERS_PYTHON), str(HERE / "generate.py"), "--out", str(folder)]
    say(f"photos: {folder} ({images:,}; drawing 5,000 takes about a minute, once)")
    subprocess.run([*script, *numbers], check=True, stdout=sys.stderr)
    return Data(folder, images, outputs)


def say(line: str) -> None:
    """Print the progress."""
    print(line, file=sys.stderr, flush=True)
