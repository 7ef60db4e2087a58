"""Sections that run contenders: the main table, few photos, larger photos, many photos."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contenders import CONTENDERS, NOT_PEERS, Data
from figures import Section, Target, number
from rounds import Results, draw, run_rounds

TRIAL_IMAGES = 64
FEW_IMAGES = 33
COLUMNS = ["", "wall s", "x loop", "images/s", "CPU s", "peak MB"]
RATIO_TARGETS = (
    ("ours", "webdataset", 0.95),
    ("ours", "keras_loop", 0.60),
    ("ours", "beam_naive", 0.10),
    ("ours_report", "ours", 1.15),
)
"""The ratios of times the project is measured by: a contender, another, and the most."""
FEW_IMAGES_S = 1.5
PEAK_MB = 300
DOUBLED_GROWTH_PERCENT = 5
FLOOR_RATIO = 1.5


@dataclass(frozen=True)
class Options:
    """Extent of the measurements.

    Attributes:
        data_dir: folder for the photos.
        images: photos of the main table.
        rounds: rounds of every section; None for each section's default.
        names: the contenders that take part.
        limit_s: seconds a run may take.
        outputs: folder for the runs' outputs; next to the photos if it is None.
        quick: whether sections with their own sizes take small ones.
    """

    data_dir: Path
    images: int
    names: list[str]
    rounds: int | None = None
    limit_s: float = 900
    outputs: Path | None = None
    quick: bool = False

    def draw(self, images: int, scale: int = 1, distinct: int = 0) -> Data:
        """Draw photos once."""
        return draw(self.data_dir, images, scale, distinct, self.outputs)


def run_main(options: Options) -> Section:
    """Measure all contenders on the usual number of photos."""
    results, conditions = _measured(options, options.images, options.rounds or 5)
    return main_section(results, options.names, options.images, conditions)


def main_section(results: Results, names: list[str], images: int, conditions: str) -> Section:
    """Return the table of all contenders, and the ratios that have targets."""
    section = Section(conditions, COLUMNS, contender_rows(results, names, images))
    section.targets = [
        Target(f"{name} / {base}, wall time", results.ratio(name, base), limit)
        for name, base, limit in RATIO_TARGETS
    ]
    peak = results.median("ours", "peak_mb")
    section.targets.append(Target("ours, peak of all processes", peak, PEAK_MB, unit="MB"))
    return section


def contender_rows(results: Results, names: list[str], images: int) -> list[list[str]]:
    """Return each contender's medians, or the error that it has instead."""

    def cells(name: str) -> list[str]:
        wall_s = results.median(name, "wall_s")
        assert wall_s is not None
        return [
            f"{wall_s:.2f}",
            number(results.ratio(name, "keras_loop"), ".2f"),
            f"{images / wall_s:,.0f}",
            number(results.median(name, "cpu_s"), ".1f"),
            number(results.median(name, "peak_mb"), ",.0f"),
        ]

    return [_row(name, [results], cells) for name in names]


def run_few(options: Options) -> Section:
    """Measure all on a few photos: nearly all is start-up."""
    results, conditions = _measured(options, FEW_IMAGES, options.rounds or 5)
    rows = contender_rows(results, options.names, FEW_IMAGES)
    section = Section(conditions, COLUMNS, rows)
    wall_s = results.median("ours", "wall_s")
    section.targets = [Target(f"ours, {FEW_IMAGES} photos", wall_s, FEW_IMAGES_S, unit="s")]
    return section


def run_double(options: Options) -> Section:
    """Measure our memory on photos twice as large."""
    rounds = options.rounds or 3
    names = [name for name in ("ours", "floor") if name in options.names]
    usual = run_rounds(names, options.draw(options.images), rounds, options.limit_s)
    data = options.draw(options.images, scale=2)
    doubled = run_rounds(names, data, rounds, options.limit_s)
    return double_section(usual, doubled, names, _conditions(options.images, rounds))


def double_section(usual: Results, doubled: Results, names: list[str], conditions: str) -> Section:
    """Return how the peaks grow when every photo is twice as large."""
    growths: dict[str, float] = {}

    def cells(name: str) -> list[str]:
        before, after = usual.median(name, "peak_mb"), doubled.median(name, "peak_mb")
        assert before is not None and after is not None
        growths[name] = (after / before - 1) * 100
        return [f"{before:,.0f}", f"{after:,.0f}", f"{growths[name]:+.1f} %"]

    rows = [_row(name, [usual, doubled], cells) for name in names]
    columns = ["", "peak MB", "peak MB, photos twice as large", "growth"]
    growth = growths.get("ours")
    what = "ours, growth of the peak"
    return Section(
        conditions, columns, rows, [Target(what, growth, DOUBLED_GROWTH_PERCENT, unit="%")]
    )


def run_marginal(options: Options) -> Section:
    """Measure all on a tenth, the usual number and ten times as many photos."""
    sizes = [max(options.images // 10, 1), options.images, 10 * options.images]
    rounds = options.rounds or 1
    results: dict[int, Results] = {}
    photo_bytes = 0.0
    for images in sizes:
        data = options.draw(images, distinct=options.images)
        failed = {name for each in results.values() for name in each.failures}
        names = [name for name in options.names if name not in failed and _takes(name, images)]
        results[images] = run_rounds(names, data, rounds, options.limit_s)
        photo_bytes = data.photo_bytes() / images
    conditions = _conditions(" and ".join(f"{n:,}" for n in sizes), rounds)
    return marginal_section(results, options.names, photo_bytes, conditions)


def _takes(name: str, images: int) -> bool:
    most = CONTENDERS[name].most_images
    return most is None or images <= most


@dataclass(frozen=True)
class Marginal:
    """Cost of the photos that a smaller set does not have, so that start-up does not count.

    Attributes:
        fewer: photos of the smaller set.
        more: photos of the larger set.
        wall_s: seconds per photo by the clock.
        cpu_s: seconds of CPU per photo.
    """

    fewer: int
    more: int
    wall_s: float
    cpu_s: float


def marginal(results: dict[int, Results], name: str) -> Marginal | None:
    """Return a contender's marginal cost, from the two largest sets that it finished.

    None without two, or if other work on the machine made the larger one take no longer.
    """
    done = [n for n in sorted(results) if results[n].median(name, "wall_s") is not None][-2:]
    if len(done) < 2:
        return None
    fewer, more = done
    a, b = results[fewer], results[more]

    def a_photo(quantity: str) -> float:
        return ((b.median(name, quantity) or 0) - (a.median(name, quantity) or 0)) / (more - fewer)

    cost = Marginal(fewer, more, a_photo("wall_s"), a_photo("cpu_s"))
    return cost if min(cost.wall_s, cost.cpu_s) > 0 else None


def marginal_section(
    results: dict[int, Results], names: list[str], photo_bytes: float, conditions: str
) -> Section:
    """Return the cost of photos without start-up, against the floor and every peer."""
    costs = {name: cost for name in names if (cost := marginal(results, name)) is not None}
    floor = costs.get("floor")
    cores = os.cpu_count() or 1

    def cells(name: str) -> list[str]:
        cost = costs[name]
        peak = results[cost.more].median(name, "peak_mb")
        more = [
            f"; {n:,}: {r.failures[name][:80]}" for n, r in results.items() if name in r.failures
        ]
        return [
            f"{cost.more:,} − {cost.fewer:,}{''.join(more)}",
            f"{1 / cost.wall_s:,.0f}",
            f"{photo_bytes / cost.wall_s / 1e9 / cores:.3f}",
            f"{photo_bytes / cost.cpu_s / 1e9:.2f}",
            number(floor and cost.wall_s / floor.wall_s, ".2f"),
            number(peak, ",.0f"),
        ]

    section = Section(conditions, list(MARGINAL_COLUMNS))
    section.rows = [_row(name, list(results.values()), cells, name in costs) for name in names]
    if len(costs) < len(names):
        section.remarks = ["Not run: not twice, or in no longer a time for more photos (noise)."]
    section.targets = marginal_targets(costs)
    return section


MARGINAL_COLUMNS = (
    *("", "photos", "images/s", "GB/s a core of the machine", "GB a second of CPU"),
    *("x floor, time a photo", "peak MB"),
)


def marginal_targets(costs: dict[str, Marginal]) -> list[Target]:
    """Return our time per photo against the floor's and the quickest peer's."""
    ours, floor = costs.get("ours"), costs.get("floor")
    peers = {name: cost.wall_s for name, cost in costs.items() if name not in NOT_PEERS}
    first = min(peers, key=lambda name: peers[name], default="every peer")
    of_floor = ours.wall_s / floor.wall_s if ours and floor else None
    of_first = ours.wall_s / peers[first] if ours and peers else None
    return [
        Target("ours / floor, time a photo", of_floor, FLOOR_RATIO),
        Target(f"ours / {first} (the quickest peer), time a photo", of_first, 1),
    ]


def run_trial(options: Options) -> None:
    """Run each once, unmeasured, so that no round pays for cold libraries."""
    run_rounds(options.names, options.draw(TRIAL_IMAGES), 1, options.limit_s)


def _measured(options: Options, images: int, rounds: int) -> tuple[Results, str]:
    data = options.draw(images)
    return run_rounds(options.names, data, rounds, options.limit_s), _conditions(images, rounds)


def _conditions(images: int | str, rounds: int) -> str:
    shown = f"{images:,}" if isinstance(images, int) else images
    return f"{shown} photos, {rounds} round{'s' if rounds > 1 else ''}, medians."


def _row(
    name: str,
    results: list[Results],
    cells: Callable[[str], list[str]],
    complete: bool | None = None,
) -> list[str]:
    """Return a contender's row of figures, or of its error."""
    fault = next((each.failures[name] for each in results if name in each.failures), None)
    if complete is None:
        complete = not fault and all(each.median(name, "wall_s") for each in results)
    if complete:
        return [name, *cells(name)]
    return [name, f"cannot run: {fault[:200]}" if fault else "not run"]
