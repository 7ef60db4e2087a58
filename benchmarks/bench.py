"""Measure beam-tfrec and its peers on the same photos: whole processes, in interleaved rounds.

    python3.11 benchmarks/bench.py                     5,000 photos, 5 rounds, all contenders
    python3.11 benchmarks/bench.py --quick             300 photos, 2 rounds
    python3.11 benchmarks/bench.py --marginal          ten times the photos: images/s, peak
    python3.11 benchmarks/bench.py --double            photos twice as large: growth of the peak

Prints Markdown; progress goes to standard error. On first use it sets up benchmarks/.venv (from
requirements.lock, about 2 GB) and draws the photos. Standard library only, Linux only.
"""

import argparse
import hashlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from measure import Run, run_measured
from records import count_tar_samples, count_tfrecords, shard_sizes

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
PEERS_PYTHON = HERE / ".venv/bin/python"
OUR_PYTHON = PROJECT / ".venv/bin/python"

OUR_PACKAGES = ("schemas", "transforms", "pipelines", "readers")
SHARDS = 16
TRIAL_IMAGES = 64
TARGETS = (
    ("ours", "keras_loop", 0.60),
    ("ours", "beam_naive", 0.10),
    ("ours", "webdataset", 0.95),
    ("ours_report", "ours", 1.15),
)
"""The ratios of times the project is measured by: a contender, another, and the most."""


@dataclass(frozen=True)
class Data:
    """One drawn data set."""

    folder: Path
    images: int


@dataclass(frozen=True)
class Contender:
    """A program that does the job.

    Attributes:
        command: its command line; {images}, {annotations} and {out} are filled in.
        records: counts what a finished run wrote; None where there are no records.
        exact: whether shards may differ by one record at most and a manifest must be there.
    """

    command: tuple[str, ...]
    records: Callable[[Path], int] | None = count_tfrecords
    exact: bool = False

    def command_for(self, data: Data, out: Path) -> list[str]:
        """Return the command line for one run."""
        values = {
            "images": data.folder / "images",
            "annotations": data.folder / "instances.json",
            "out": out,
        }
        return [word.format(**values) for word in self.command]

    def fault(self, data: Data, out: Path) -> str | None:
        """Return what is wrong with a finished run's output, counted independently, or None."""
        try:
            written = data.images if self.records is None else self.records(out)
            sizes = shard_sizes(out) if self.exact else []
        except ValueError as error:
            return str(error)
        if written != data.images:
            return f"wrote {written:,} of {data.images:,} records"
        if not self.exact:
            return None
        if len(sizes) != SHARDS or max(sizes) - min(sizes) > 1:
            return f"wanted {SHARDS} even shards, got {sizes}"
        return None if (out / "manifest.json").exists() else "no manifest.json"


def _peer(script: str, *flags: str, **options) -> Contender:
    paths = ("{images}", "{annotations}", "{out}")
    command = (str(PEERS_PYTHON), str(HERE / "peers" / script), *paths, *flags)
    return Contender(command, **options)


OURS = (
    *(str(OUR_PYTHON), "-m", "pipelines.coco"),
    *("--images", "train={images}"),
    *("--annotations", "train={annotations}"),
    *("--output", "{out}"),
    *("--num_shards", str(SHARDS)),
)

CONTENDERS = {
    "cat": _peer("cat_files.py", records=None),
    "floor": _peer("floor.py"),
    "floor_2": _peer("floor.py", "--processes", "2"),
    "ours": Contender((*OURS, "--no_report"), exact=True),
    "ours_report": Contender(OURS, exact=True),
    "webdataset": _peer("webdataset_writer.py", records=count_tar_samples),
    "keras_loop": _peer("keras_loop.py"),
    "tfds": _peer("tfds_writer.py"),
    "beam_naive": _peer("beam_naive.py"),
}


@dataclass
class Results:
    """Rounds of runs, and the contenders that failed.

    Attributes:
        rounds: for each round, the runs by contender.
        failures: what a contender's failed run said; it takes no part in later rounds.
    """

    rounds: list[dict[str, Run]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, name: str, quantity: str) -> float | None:
        """Return the median of one quantity of a contender's runs."""
        values = [getattr(runs[name], quantity) for runs in self.rounds if name in runs]
        return statistics.median(values) if values else None

    def ratio(self, name: str, base: str) -> float | None:
        """Return how long `name` took against `base`: see `median_ratio`."""
        walls = [{key: run.wall_s for key, run in runs.items()} for runs in self.rounds]
        return median_ratio(walls, name, base)


def median_ratio(rounds: list[dict[str, float]], name: str, base: str) -> float | None:
    """Return the median over the rounds of `name` / `base`, each taken within its round.

    A machine that drifts moves both sides of a round: the ratio stays, where the ratio of two
    medians would compare one contender's good rounds with another's bad ones.

    >>> median_ratio([{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 9, "b": 9}], "a", "b")
    0.75
    """
    ratios = [walls[name] / walls[base] for walls in rounds if name in walls and base in walls]
    return statistics.median(ratios) if ratios else None


def run_rounds(names: list[str], data: Data, rounds: int, limit_s: float) -> Results:
    """Run every contender once a round, in turn, a different one first in each round.

    One unmeasured copy goes before: it warms the page cache, and the memory that outputs lie in.
    """
    results = Results()
    (data.folder / "instances.json").read_bytes()
    run_once(CONTENDERS["cat"], data, limit_s)
    for number in range(rounds):
        runs: dict[str, Run] = {}
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if name in results.failures:
                continue
            run, fault = run_once(CONTENDERS[name], data, limit_s)
            if fault is None:
                runs[name] = run
            else:
                results.failures[name] = fault
            note = fault or f"{run.wall_s:.2f} s, {run.peak_mb:,.0f} MB"
            _say(f"{data.folder.name}, round {number + 1}/{rounds}: {name}: {note}")
        results.rounds.append(runs)
    return results


def run_once(contender: Contender, data: Data, limit_s: float) -> tuple[Run, str | None]:
    """Run a contender into a fresh folder beside the data; return the run and its fault.

    What earlier runs left to be written to disk is written first: it is not this one's to wait for.
    """
    out = Path(tempfile.mkdtemp(prefix="out-", dir=data.folder.parent))
    try:
        os.sync()
        run = run_measured(contender.command_for(data, out), PROJECT, limit_s)
        if run.exit_code is None:
            return run, f"took more than {limit_s:.0f} s"
        if run.exit_code != 0:
            return run, f"exit {run.exit_code}: {run.last_line}"
        return run, contender.fault(data, out)
    finally:
        shutil.rmtree(out)


def draw(data_dir: Path, images: int, scale: int = 1) -> Data:
    """Draw photos once; later calls find them."""
    folder = data_dir / (f"photos-{images}" if scale == 1 else f"photos-{images}-x{scale}")
    script = [str(PEERS_PYTHON), str(HERE / "generate.py"), "--out", str(folder)]
    _say(f"photos: {folder} ({images:,}; drawing 5,000 takes about a minute, once)")
    numbers = ["--images", str(images), "--scale", str(scale)]
    subprocess.run([*script, *numbers], check=True, stdout=sys.stderr)
    return Data(folder, images)


def set_up(names: list[str]) -> None:
    """Make the peers' environment if it is not there, and byte-compile both.

    Some installers leave no bytecode; every contender would then pay seconds of compiling.
    """
    if "ours" in names and not OUR_PYTHON.exists():
        raise SystemExit("there is no .venv: run `make setup` first, or add --skip ours")
    lock = HERE / "requirements.lock"
    stamp = HERE / ".venv/.installed"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        _say("setting up benchmarks/.venv from benchmarks/requirements.lock (once, some minutes)")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(HERE / ".venv")], check=True)
        install = "install --quiet --disable-pip-version-check --require-hashes --no-deps -r"
        command = [str(PEERS_PYTHON), "-m", "pip", *install.split(), str(lock)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        stamp.write_text(digest)
    _say("byte-compiling")
    compile_all(PEERS_PYTHON, HERE / ".venv/lib", HERE / "peers")
    if "ours" in names:
        packages = [PROJECT / name for name in OUR_PACKAGES]
        compile_all(OUR_PYTHON, PROJECT / ".venv/lib", *packages)


def compile_all(python: Path, *folders: Path) -> None:
    """Write the bytecode of all modules below folders, where it is missing or old."""
    subprocess.run([str(python), "-m", "compileall", "-qq", *map(str, folders)], check=False)


def comparison_table(results: Results, names: list[str], images: int) -> str:
    """Return the Markdown table of medians, and the ratios that have targets."""
    rows = ["| | wall s | x loop | images/s | CPU s | peak MB |", "|---|---|---|---|---|---|"]
    for name in names:
        wall_s = results.median(name, "wall_s")
        if name in results.failures or wall_s is None:
            rows.append(_failed_row(name, 5, results))
            continue
        cells = [
            f"{wall_s:.2f}",
            _number(results.ratio(name, "keras_loop"), ".2f"),
            f"{images / wall_s:,.0f}",
            _number(results.median(name, "cpu_s"), ".1f"),
            _number(results.median(name, "peak_mb"), ",.0f"),
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    if "ours" not in names:
        return "\n".join(rows)
    rows += ["", "| ratio, median of the rounds | measured | at most |", "|---|---|---|"]
    for name, base, limit in TARGETS:
        ratio, verdict = results.ratio(name, base), f"{limit:.2f}"
        if ratio is not None:
            verdict += ", met" if ratio <= limit else ", MISSED"
        rows.append(f"| {name} / {base} | {_number(ratio, '.2f')} | {verdict} |")
    return "\n".join(rows)


def growth_table(small: Results, large: Results, names: list[str], sizes: tuple[int, int]) -> str:
    """Return how contenders do on ten times the photos; the marginal rate leaves out start-up."""
    rows = [
        f"| | images/s of {sizes[0]:,} | of {sizes[1]:,} | marginal | peak MB | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        walls = small.median(name, "wall_s"), large.median(name, "wall_s")
        if None in walls:
            rows.append(_failed_row(name, 5, small, large))
            continue
        marginal = (sizes[1] - sizes[0]) / max(walls[1] - walls[0], 1e-9)
        rates = [sizes[0] / walls[0], sizes[1] / walls[1], marginal]
        peaks = [small.median(name, "peak_mb"), large.median(name, "peak_mb")]
        cells = [f"{value:,.0f}" for value in rates + peaks]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def double_table(usual: Results, doubled: Results, names: list[str]) -> str:
    """Return how the peak grows when every photo is twice as large."""
    rows = ["| | peak MB | peak MB, photos twice as large | growth |", "|---|---|---|---|"]
    for name in names:
        peaks = usual.median(name, "peak_mb"), doubled.median(name, "peak_mb")
        if None in peaks:
            rows.append(_failed_row(name, 3, usual, doubled))
            continue
        growth = peaks[1] / peaks[0] - 1
        rows.append(f"| {name} | {peaks[0]:,.0f} | {peaks[1]:,.0f} | {growth:+.1%} |")
    return "\n".join(rows)


def machine() -> str:
    """Describe the machine in a line, and what else it had to do before the rounds."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    text = Path("/proc/cpuinfo").read_text()
    models = [line.split(": ")[1] for line in text.splitlines() if line.startswith("model name")]
    memory = f"{pages / 2**30:.0f} GB"
    cores = f"{os.cpu_count()} cores ({models[0] if models else platform.machine()})"
    system = f"{platform.system()}, Python {platform.python_version()}"
    return f"{cores}, {memory}, {system}, load average {os.getloadavg()[0]:.1f} before"


def _failed_row(name: str, cells: int, *results: Results) -> str:
    """Return a table row that says why a contender has no figures."""
    fault = next((each.failures[name] for each in results if name in each.failures), "not run")
    fault = fault[:200].replace("|", "\\|")
    return f"| {name} | failed: {fault} |" + " |" * (cells - 1)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in CONTENDERS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(CONTENDERS)}")
    return names


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line; fill in what depends on the kind of measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--marginal", action="store_true", help="ours and floor, ten times as many")
    kind.add_argument("--double", action="store_true", help="ours, photos twice as large")
    parser.add_argument("--quick", action="store_true", help="300 photos, 2 rounds")
    parser.add_argument("--images", type=int, help="photos (default 5000)")
    parser.add_argument("--rounds", type=int, help="rounds (default 5; with --marginal 3)")
    parser.add_argument("--only", type=_names, help=f"of {','.join(CONTENDERS)}")
    parser.add_argument("--skip", type=_names, default=[], help="contenders to leave out")
    parser.add_argument("--limit", type=float, default=900, help="seconds a run (default 900)")
    parser.add_argument(
        "--data-dir", type=Path, default=HERE / "data", help="for photos and outputs"
    )
    args = parser.parse_args(argv)
    args.images = args.images or (300 if args.quick else 5000)
    args.rounds = args.rounds or (2 if args.quick else 3 if args.marginal else 5)
    usual = ["ours", "floor"] if args.marginal else ["ours"] if args.double else list(CONTENDERS)
    args.names = [name for name in args.only or usual if name not in args.skip]
    if not args.names or min(args.images, args.rounds) < 1:
        parser.error("nothing to measure: no contender, image or round is left")
    return args


def main(argv: list[str] | None = None) -> int:
    """Measure, print; return 1 when a contender failed."""
    args = parse(argv)
    names, rounds, limit_s = args.names, args.rounds, args.limit
    set_up(names)
    data_dir = args.data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    described = machine()
    _say("a trial of each, unmeasured, so that no round pays for cold libraries")
    results = [run_rounds(names, draw(data_dir, TRIAL_IMAGES), 1, limit_s)]
    usual = run_rounds(names, draw(data_dir, args.images), rounds, limit_s)
    results.append(usual)
    print(f"{args.images:,} photos, {rounds} rounds, medians; {described}.\n")
    if args.marginal:
        many = 10 * args.images
        results.append(run_rounds(names, draw(data_dir, many), rounds, limit_s))
        print(growth_table(usual, results[-1], names, (args.images, many)))
    elif args.double:
        results.append(run_rounds(names, draw(data_dir, args.images, scale=2), rounds, limit_s))
        print(double_table(usual, results[-1], names))
    else:
        print(comparison_table(usual, names, args.images))
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
