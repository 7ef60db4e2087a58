"""The page in Chromium: what people do with it, by mouse, by keys and without scripts.

`.ci/run` installs Playwright and axe-core in an environment of their own and names its Python in
BROWSER_PYTHON; CHROMIUM names the browser, where it is not on PATH.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from schemas.documents.data_card import seen as made_visible
from tests.report_contents import (
    BIDI,
    KNOWN_BOX,
    XSS,
    hostile_report,
    one_box_report,
    rich_report,
)
from transforms.report.page import render_page

PROJECT = Path(__file__).parents[1]
PYTHON = os.environ.get("BROWSER_PYTHON", "")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
pytestmark = [
    pytest.mark.skipif(
        not PYTHON, reason="BROWSER_PYTHON names no Python with Playwright; .ci/run installs one"
    ),
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH, and CHROMIUM names none"),
]
LOOKS = (
    *("filters", "drawn", "lightbox", "keyboard", "sizes", "hostile", "policy", "axe"),
    *("without_script", "known_box"),
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a browser saw in the pages, look by look."""
    folder = tmp_path_factory.mktemp("pages")
    reports = {
        "rich": rich_report(),
        "few": rich_report(12, 5),
        "small": rich_report(58, 80),
        "one": one_box_report(),
        "hostile": hostile_report(),
    }
    for name, report in reports.items():
        (folder / f"{name}.html").write_bytes(render_page(report))
    command = [PYTHON, "-m", "tests.browser.look", CHROMIUM, str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("look", LOOKS)
def test_pages_write_no_errors_ask_no_network_and_open_no_dialogs(
    look: str, seen: dict[str, dict[str, Any]]
) -> None:
    assert set(seen) == set(LOOKS)
    assert seen[look]["problems"] == []


BICYCLES = [shown.record.split for shown in rich_report().pictures if 2 in shown.labels]
WANTED: dict[str, dict[str, Any]] = {
    "filters": {
        "all": 96,
        "val": 48,
        "bicycles of val": BICYCLES.count("val"),
        "said": f"{BICYCLES.count('val')} of 96 pictures",
        "found": ["bicycle", "motorcycle"],
        "by link": len(BICYCLES),
    },
    "lightbox": {
        "open": True,
        "places": [f"{place} of 96" for place in (3, 4, 3, 2, 1, 96)],
        "facts": ["record", "95 of val-00000-of-00001-96.tfrec"],
        "enlarged": True,
        "closed": True,
        "focus is back": True,
        "filtered": True,
        "closed by a click beside it": True,
    },
    "policy": {
        "refused": True,
        "directives": ["style attribute", "img-src", "style-src"],
        "innerHTML": "TypeError",
    },
    "without_script": {"tiles": 96, "facts": 96, "controls": 0},
    "drawn": {switch: [True, 0] for switch in ("boxes", "masks", "points", "names")},
    "sizes": {
        f"{page} {width}": [0, 0] for page in ("rich", "hostile", "small") for width in (1400, 400)
    },
}


@pytest.mark.parametrize("look", WANTED)
def test_a_page_does_what_people_want(look: str, seen: dict[str, dict[str, Any]]) -> None:
    assert seen[look] == {**WANTED[look], "problems": []}


def test_all_that_can_be_clicked_is_reached_by_tab(seen: dict[str, dict[str, Any]]) -> None:
    looked = seen["keyboard"]
    *stops, end = looked["stops"]

    assert end == "" and len(stops) == looked["clickable"] == len(set(stops))
    assert stops[0] == "skip"
    assert {"open", "filter-class", "show-boxes", "#origin"} <= set(stops)
    assert looked["skip link is seen"]
    assert looked["skips to"] == "main"


def test_strangers_texts_show_as_texts(seen: dict[str, dict[str, Any]]) -> None:
    looked = seen["hostile"]

    assert (looked["elements"], looked["scripts"], looked["heading"]) == (0, 1, XSS)
    assert looked["options"] == ["all", XSS, made_visible(BIDI, 300)]
    assert made_visible(BIDI, 300) in looked["text"]
    assert all(c.isprintable() or c in "\n\t" for c in looked["text"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "view",
    [
        *("one 1400 {}", "hostile 1400 {}", "few 1400 {}", "few 400 {}"),
        *("few 1400 {}, enlarged", "few 400 {}, enlarged"),
    ],
)
def test_axe_finds_nothing_serious(view: str, scheme: str, seen: dict[str, dict[str, Any]]) -> None:
    assert seen["axe"][view.format(scheme)] == []


@pytest.mark.parametrize("where", ["tile 1400", "tile 400", "enlarged"])
def test_a_known_box_is_laid_out_where_it_belongs(
    where: str, seen: dict[str, dict[str, Any]]
) -> None:
    places = seen["known_box"][where]
    left, top, width, height = places["image"]
    x, y, w, h = KNOWN_BOX
    corners = [(left + x * width, top + y * height)]
    corners.append((corners[0][0] + w * width, corners[0][1] + h * height))

    assert width > 100
    assert places["box"] == pytest.approx([*corners[0], w * width, h * height], abs=0.1)
    assert [tuple(dot) for dot in places["dots"]] == [
        pytest.approx(corner, abs=0.1) for corner in corners
    ]
