"""The benchmarks: the generated photos, the ratios, and the figures that README shows."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))  # scripts, not a package

import bench  # noqa: E402
import chart  # noqa: E402
import figures  # noqa: E402
import generate  # noqa: E402
import rounds  # noqa: E402

IMAGES = 130


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    out = tmp_path_factory.mktemp("drawn")
    assert generate.generate(generate.Recipe(IMAGES), out)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def photo_sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in (folder / "images").iterdir()]


class TestGenerate:
    def test_equal_parameters_draw_equal_bytes(self, tmp_path):
        generate.generate(generate.Recipe(40), tmp_path / "one", processes=1)
        generate.generate(generate.Recipe(40), tmp_path / "two", processes=2)
        assert contents(tmp_path / "one") == contents(tmp_path / "two")

    def test_every_photo_differs(self, drawn):
        photos = [path.read_bytes() for path in (drawn / "images").iterdir()]
        assert len(photos) == IMAGES == len(set(photos))

    def test_photos_have_the_stated_mean_size(self, drawn):
        assert sum(photo_sizes(drawn)) / IMAGES == pytest.approx(793e6 / 5000, rel=0.15)

    def test_annotations_are_valid_coco(self, drawn):
        coco = json.loads((drawn / "instances.json").read_bytes())
        assert list(coco) == ["info", "licenses", "images", "annotations", "categories"]
        categories = [category["id"] for category in coco["categories"]]
        assert (len(categories), min(categories), max(categories)) == (80, 1, 90)
        images = {image["id"]: image for image in coco["images"]}
        annotations = coco["annotations"]
        assert len(images) == IMAGES
        assert len({annotation["id"] for annotation in annotations}) == len(annotations)
        assert len(annotations) / IMAGES == pytest.approx(7, rel=0.25)
        assert IMAGES - len({annotation["image_id"] for annotation in annotations}) == 1
        for annotation in annotations:
            image = images[annotation["image_id"]]
            x, y, width, height = annotation["bbox"]
            assert annotation["category_id"] in categories
            assert min(x, y) >= 0 < min(width, height)
            assert x + width <= image["width"]
            assert y + height <= image["height"]
            assert 0 < annotation["area"] <= 2 * width * height
            if annotation["iscrowd"]:
                runs = annotation["segmentation"]["counts"]
                assert sum(runs) == image["width"] * image["height"]
                assert sum(runs[1::2]) == annotation["area"]
            else:
                xs = [x for polygon in annotation["segmentation"] for x in polygon[::2]]
                assert min(xs) == x
                assert max(xs) == pytest.approx(x + width)


ROUNDS = [
    {"ours": 1.0, "loop": 2.0},
    {"ours": 9.0, "loop": 10.0},  # a slow minute: both sides move, their ratio only a little
    {"ours": 1.2, "loop": 2.0},
]


@pytest.mark.parametrize(
    ("walls", "ratio"),
    [
        (ROUNDS, 0.6),
        (ROUNDS[:2], 0.7),
        ([*ROUNDS, {"ours": 1.0}], 0.6),  # the base failed in the last round
        ([{"ours": 1.0}], None),
        ([], None),
    ],
)
def test_the_ratio_is_the_median_of_ratios_within_rounds(walls, ratio):
    expected = None if ratio is None else pytest.approx(ratio)
    assert rounds.median_ratio(walls, "ours", "loop") == expected


def test_the_readme_and_the_chart_show_the_stored_results():
    sections = figures.load(bench.RESULTS)
    readme = bench.README.read_text("utf-8")
    assert figures.fill_in(readme, sections) == readme
    assert all(f"<!-- bench: {name} -->" in readme for name in bench.SECTIONS)
    points = sections["marginal"].points
    assert not points or bench.CHART.read_text("utf-8") == chart.draw_chart(points)
