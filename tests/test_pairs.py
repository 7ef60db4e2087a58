"""Pairs end to end: what super-resolution tutorials read, rejects, flags."""

import os
from pathlib import Path

import pytest

from beam_tfrec.pipelines import pairs
from beam_tfrec.schemas.layouts import Built, Unfit
from beam_tfrec.schemas.layouts.classification import PairsLayout
from beam_tfrec.schemas.samples import Sample
from tests.coco_command import committed_by, examples, literal_png, rejected_of, value
from tests.small_pictures import or_unfit
from tests.turned_images import encoded

Roots = tuple[Path, Path]


def write_pairs(folder: Path, count: int = 6, scale: int = 2, suffix: str = "") -> Roots:
    """Write pairs `0000.png` …, the low images with a suffix; return both folders."""
    low, high = folder / "low", folder / "high"
    low.mkdir(parents=True)
    high.mkdir()
    for number in range(count):
        (low / f"{number:04}{suffix}.png").write_bytes(literal_png(3, 2, number))
        (high / f"{number:04}.png").write_bytes(literal_png(3 * scale, 2 * scale, number))
    return low, high


def sources(roots: Roots) -> list[object]:
    return ["--low", roots[0], "--high", roots[1]]


def names(out: Path, split: str = "") -> list[str]:
    return [value(example, "filename")[0].decode() for example in examples(out, split)]


def test_records_hold_both_files_and_the_high_name(tmp_path: Path) -> None:
    roots = write_pairs(tmp_path, suffix="x2")
    manifest = committed_by(
        pairs.run, tmp_path / "out", *sources(roots), "--scale", 2, "--order", "input"
    )
    got = {}
    for example in examples(tmp_path / "out"):
        (name,), (lr,), (hr,) = (value(example, key) for key in ("filename", "lr", "hr"))
        got[name.decode()] = lr, hr
    assert got == {
        f"{number:04}.png": (literal_png(3, 2, number), literal_png(6, 4, number))
        for number in range(6)
    }
    assert names(tmp_path / "out") == sorted(got)
    assert [feature["key"] for feature in manifest["features"]] == ["filename", "hr", "lr"]


@pytest.mark.parametrize(
    ("flags", "suffix"),
    [([], ""), (["--scale", "2"], "x2"), (["--scale", "2", "--low_suffix", "_lr"], "_lr")],
)
def test_suffix_follows_the_scale_unless_given(flags: list[str], suffix: str) -> None:
    roots = ["--low", "l", "--high", "h", "--output", "o"]
    config, _ = pairs.COMMAND.configure([*roots, *flags])
    assert config.low_suffix == suffix


def test_files_without_a_partner_are_rejects(tmp_path: Path) -> None:
    roots = write_pairs(tmp_path)
    (roots[0] / "0001.png").unlink()
    (roots[1] / "0002.png").unlink()
    (roots[0] / "0003.bmp").write_bytes(literal_png(3, 2, 0))
    for root in roots:
        os.mkdir(os.fsencode(root) + b"/\xff")  # cannot be listed
    (roots[0] / ".hidden").mkdir()
    (roots[1] / "Thumbs.db").write_bytes(b"")
    manifest = committed_by(pairs.run, tmp_path / "out", *sources(roots), "--max_rejected", 6)
    assert [
        (line["code"], line["key"], line["detail"]) for line in rejected_of(tmp_path / "out")
    ] == [
        ("E-IMG-MISSING", "0001.png", "no low image has its name"),
        ("E-SRC-TWICE", "0003.png", "2 low and 1 high images have its name"),
        ("E-IMG-NOT-A-FILE", "\\xff", "a directory whose name is not UTF-8"),
        ("E-IMG-MISSING", "low:0002.png", "no high image has its name"),
        ("E-SRC-TWICE", "low:0003.bmp", "2 low and 1 high images have its name"),
        ("E-SRC-TWICE", "low:0003.png", "2 low and 1 high images have its name"),
    ]
    assert sorted(names(tmp_path / "out")) == ["0000.png", "0004.png", "0005.png"]
    assert manifest["splits"]["train"]["listed"] == 10
    assert manifest["splits"]["train"]["skipped"] == {"not_called_an_image": 1}


@pytest.mark.parametrize(
    ("size", "scale", "detail"),
    [
        ((6, 4), None, ""),
        ((9, 6), 2, "high is 9 x 6, not 2 times of low's 3 x 2"),
        ((6, 5), None, "high is 6 x 5, not a whole multiple of low's 3 x 2"),
    ],
)
def test_sizes_are_checked(size: tuple[int, int], scale: int | None, detail: str) -> None:
    images = [encoded(literal_png(3, 2, 0)), encoded(literal_png(*size, 0))]
    sample = Sample("train", "a.png", 0, (), b"")
    built = or_unfit(PairsLayout(scale).build, sample, images, {})
    assert built == Unfit("E-IMG-SIZE", detail, 1) if detail else isinstance(built, Built)
