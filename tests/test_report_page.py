"""The page as text: escaped, the same for equal reports, of bounded size, with its policy."""

import base64
import hashlib
import html
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from schemas.statistics import Statistics
from tests.report_contents import (
    BIDI,
    KNOWN_BOX,
    XSS,
    hostile_report,
    one_box_report,
    picture,
    rich_report,
)
from transforms.report.contents import Outline, Report, ShardFacts, SplitReport
from transforms.report.page import render_page
from transforms.report.tiles import MOST_PICTURE_BYTES, make_sheets, make_tile

ROOT = Path(__file__).parents[1]


class Found(HTMLParser):
    """Elements with their attributes, and the texts of a page."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def rich() -> bytes:
    return render_page(rich_report())


@pytest.fixture(scope="module")
def hostile() -> bytes:
    return render_page(hostile_report())


def test_strangers_texts_are_texts(hostile: bytes) -> None:
    found = Found(hostile)

    assert XSS.encode() not in hostile
    assert any(XSS in text for text in found.texts)
    images = [attributes["src"] for tag, attributes in found.tags if tag == "img"]
    assert images and all(str(src).startswith("data:image/jpeg;base64,") for src in images)
    assert sum(tag == "script" for tag, _ in found.tags) == 1
    names = {name for _, attributes in found.tags for name in attributes}
    assert not {name for name in names if name.startswith("on") or name == "style"}
    assert "{{ 7 * 7 }}" in " ".join(found.texts)


def test_what_cannot_be_seen_is_shown_as_python_escapes_it(hostile: bytes) -> None:
    text = html.unescape(hostile.decode())

    assert "photo_\\u202egpj.exe\\x07\\x1b[31m\\u200b.jpg" in text
    assert not set(text) & set(BIDI.replace("\\", "")) - set(map(chr, range(32, 127)))
    assert "\\ud800 lone" in text


def test_long_texts_are_cut(hostile: bytes) -> None:
    assert max(map(len, re.findall("x+|y+", hostile.decode()))) == 299


def test_the_policy_names_the_only_style_and_script(rich: bytes) -> None:
    text = rich.decode()
    (style,), (script,) = (
        re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("style", "script")
    )
    (policy,) = (
        attributes["content"]
        for tag, attributes in Found(rich).tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )

    def digest(part: str) -> str:
        return base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()

    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest(style)}';"
        f" script-src 'sha256-{digest(script)}'; base-uri 'none'; form-action 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    )


def test_nothing_is_outside_the_page(rich: bytes) -> None:
    for tag, attributes in Found(rich).tags:
        for name in ("src", "href", "action", "srcset", "poster", "xlink:href"):
            assert str(attributes.get(name, "#")).startswith(("data:", "#")), (tag, attributes)


def test_every_link_within_the_page_has_its_end(rich: bytes) -> None:
    tags = Found(rich).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    links = {attributes["href"] for tag, attributes in tags if tag == "a"}
    labels = {attributes.get("aria-labelledby") for _, attributes in tags} - {None}

    assert len(ids) == len(set(ids))
    assert links <= {f"#{name}" for name in ids}
    assert labels <= set(ids)


def test_equal_reports_have_equal_bytes(rich: bytes) -> None:
    report = rich_report()
    backwards = replace(
        report,
        class_names=dict(reversed(report.class_names.items())),
        splits=[replace(s, statistics=_backwards(s.statistics)) for s in report.splits],
    )

    assert backwards == report
    assert render_page(backwards) == rich


def _backwards(statistics: Statistics) -> Statistics:
    values = {name: getattr(statistics, name) for name in statistics.__struct_fields__}
    turned = {
        name: dict(reversed(value.items())) if isinstance(value, dict) else value
        for name, value in values.items()
    }
    return Statistics(**turned)


def test_pages_are_the_same_whatever_strings_hash_to() -> None:
    program = (
        "import hashlib\n"
        "from tests.report_contents import rich_report\n"
        "from transforms.report.page import render_page\n"
        "print(hashlib.sha256(render_page(rich_report(8, 40, 4))).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_page_of_240_pictures_and_1203_classes_is_under_5_megabytes() -> None:
    report = rich_report(240)
    pictures = [replace(shown, jpeg=shown.jpeg.ljust(12_000, b"\0")) for shown in report.pictures]
    page = render_page(replace(report, pictures=pictures))

    assert sum(tag == "img" for tag, _ in Found(page).tags) == 240
    assert len(page) <= 5_000_000


def test_crowded_pictures_do_not_make_a_page_heavy() -> None:
    crowd = tuple(Outline(n, "name", (n / 999, 0.1, 0.001 * n, 0.5)) for n in range(500))
    pictures = [
        replace(picture(n, "train", None), outlines=crowd, labels=tuple(range(500)))
        for n in range(240)
    ]
    page = render_page(Report("crowds", "", [_split("train")], pictures=pictures))

    assert len(page) <= 5_000_000
    (left_out,) = set(re.findall(r"<dd>(\d+) objects</dd>", page.decode()))
    assert 450 <= int(left_out) < 500


def test_pictures_without_room_are_counted() -> None:
    large = replace(picture(1, "train", None), jpeg=bytes(MOST_PICTURE_BYTES // 3))
    page = render_page(Report("large", "", [_split("train")], pictures=[large] * 5))

    assert b"and 2 more pictures, for which this page has no room" in page
    assert len(page) < 5_000_000


def test_long_lists_are_cut_and_say_so() -> None:
    report = Report(
        "long",
        "table",
        [_split(f"split_{n:03}") for n in range(30)],
        {n: f"class {n}" for n in range(21_841)},
        options=[(f"option {n}", "x") for n in range(1000)],
        sources=[f"source {n}" for n in range(1000)],
        features=[(f"key/{n}", "float", "one", "") for n in range(1000)],
    )
    first = replace(report.splits[0], statistics=Statistics(class_records={1: 5}))
    text = render_page(replace(report, splits=[first, *report.splits[1:]])).decode()

    for more in (
        "and 21,534 more between these",
        "21,841 classes, 21,840 of them without a record",
        "and 900 more",
        "and 700 more features",
        "6 more splits are not shown",
    ):
        assert more in text


def _split(name: str) -> SplitReport:
    return SplitReport(name, Statistics(records=3), [ShardFacts(f"{name}-00000-of-00001", 3, 900)])


def test_totals_hold_the_classes_that_no_table_has() -> None:
    statistics = Statistics(
        records=9,
        class_records={1: 4, 2: 3},
        class_objects={1: 5, 2: 3},
        unlisted_class_records=2,
        unlisted_class_objects=40,
    )
    page = render_page(Report("a", "", [SplitReport("train", statistics, [])]))
    text = re.sub(r"\s+", " ", " ".join(Found(page).texts))
    assert "classes 2+ objects 48" in text


def test_sums_rejects_and_totals_are_on_the_page(rich: bytes) -> None:
    text = re.sub(r"\s+", " ", " ".join(Found(rich).texts))

    for shown in (
        "birds-and-bicycles-2026",
        "listed 20,014",
        "rejected before planning 6",
        "written 20,000",
        "E-IMG-TRUNCATED the file ends before its image does 9 9 18",
        "exif_gps EXIF has a GPS directory: where the picture was taken 12 12 24",
        "Private data: 24 pictures with GPS positions in their EXIF data;",
        "photos/000000000003.jpg no end marker in 50112 of 95584 bytes",
        "train, key 000000000003, annotations 3, 7, train-00003-of-00016, found by write_shards",
        "and 3 more",
        "photos/train: 20,014 files",
        "left edge, as a part of the width",
    ):
        assert shown in text


def test_a_file_of_unknown_origin_has_a_page() -> None:
    split = SplitReport("", Statistics(records=7), [ShardFacts("any.tfrecord", 7, 700)])
    found = Found(render_page(Report("any.tfrecord", "", [split])))
    sections = [attributes["id"] for tag, attributes in found.tags if tag == "section"]

    assert sections == ["shards", "origin"]
    assert "Shard sizes, all records" in found.texts


def test_a_report_of_nothing_has_a_page() -> None:
    assert b"<h1>nothing</h1>" in render_page(Report("nothing", "table", []))


def test_boxes_and_keypoints_are_percents_of_the_picture() -> None:
    tile = make_tile(0, one_box_report().pictures[0], ["train"], {1: "square"})
    (mark,) = tile.marks

    assert KNOWN_BOX == (0.25, 0.125, 0.5, 0.375)
    assert mark.box == ("25%", "12.5%", "50%", "37.5%")
    assert mark.points == (("25%", "12.5%"), ("75%", "50%"))
    assert mark.text == "square"
    assert tile.alt == "1: 1 × square"
    assert (tile.size_px, tile.left_out) == ((232, 174), 0)


def test_outlines_that_cannot_be_drawn_are_counted() -> None:
    nan, inf = float("nan"), float("inf")
    boxes = [(nan, 0, 1, 1), (0, 0, inf, 1), (0.5, 0.5, -0.1, 0.1), (0, 0, 1e9, 1), (0, 0, 1, 1)]
    outlines = tuple(Outline(1, "", box) for box in boxes)
    shown = replace(one_box_report().pictures[0], outlines=outlines)
    tile = make_tile(0, shown, ["train"], {})

    assert [mark.box for mark in tile.marks] == [("0%", "0%", "100%", "100%")]
    assert tile.left_out == 4


def test_every_picture_is_in_one_place_and_its_other_classes_point_there() -> None:
    base = one_box_report().pictures[0]
    both = replace(base, key="both", for_classes=(1, 2))
    later = replace(base, key="later", for_split=False, for_classes=(2, 3))
    stray = replace(base, key="stray", for_split=False, split="train")
    sheets = make_sheets([both, later, stray], ["train"], {1: "one", 2: "two"})

    split_keys = [(name, [t.picture.key for t in tiles]) for _, name, tiles in sheets.splits]
    assert split_keys == [("train", ["both", "stray"])]
    assert [
        (sheet.name, [t.picture.key for t in sheet.tiles], [t.picture.key for t in sheet.above])
        for sheet in sheets.classes
    ] == [("one", [], ["both"]), ("two", ["later"], ["both"]), ("class 3", [], ["later"])]


def test_jinja_is_imported_when_a_page_is_rendered_and_not_before() -> None:
    program = "import sys, transforms.report.page\nprint('jinja2' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_wheel_and_source_archive_hold_the_page(tmp_path: Path) -> None:
    """Workers get the source archive from Beam, people the wheel."""
    for name in ("schemas", "transforms", "pipelines", "readers"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "--formats=zip", "bdist_wheel"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assets = {
        f"transforms/report/assets/{path.name}"
        for path in (ROOT / "transforms/report/assets").iterdir()
    }
    assert {Path(name).suffix for name in assets} == {".css", ".js", ".j2"}
    (wheel,), (source,) = tmp_path.glob("dist/*.whl"), tmp_path.glob("dist/*.zip")
    assert assets <= set(zipfile.ZipFile(wheel).namelist())
    inside = {name.partition("/")[2] for name in zipfile.ZipFile(source).namelist()}
    assert assets <= inside
