"""The benchmarks: the generated photos, the ratios, and the figures that README shows."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))  # scripts, not a package

import bench  # noqa: E402
import figures  # noqa: E402
import rounds  # noqa: E402

ROUNDS = [
    {"ours": 1.0, "loop": 2.0},
    {"ours": 9.0, "loop": 10.0},  # a slow minute: both sides move, their ratio only a little
    {"ours": 1.2, "loop": 2.0},
]


def test_the_ratio_is_the_median_of_ratios_within_rounds():
    failed = {"ours": 1.0}
    assert rounds.median_ratio([*ROUNDS, failed], "ours", "loop") == pytest.approx(0.6)
    assert rounds.median_ratio([failed], "ours", "loop") is None


def test_the_readme_shows_the_stored_results():
    sections = figures.load(bench.RESULTS)
    readme = bench.README.read_text("utf-8")
    assert figures.fill_in(readme, sections) == readme
    assert all(f"<!-- bench: {name} -->" in readme for name in bench.SECTIONS)
