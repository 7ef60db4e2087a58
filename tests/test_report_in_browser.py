"""The report's page in Chromium, used by mouse and keys, and without scripts.

`.ci/run` installs Playwright and axe-core in their own environment and names its Python in
BROWSER_PYTHON; CHROMIUM names the browser if it is not on PATH.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_tfrec.pipelines import coco
from beam_tfrec.transforms.report.page import render_page
from tests.coco_command import PROJECT, committed_by
from tests.conftest import TEST_DATA
from tests.report_contents import hostile_report, one_box_report, rich_report

PYTHON = os.environ.get("BROWSER_PYTHON", "")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
SCREENSHOTS = os.environ.get("SCREENSHOTS", "")  # where to write them: `make screenshots`
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not PYTHON, reason="BROWSER_PYTHON names no Python with Playwright; .ci/run installs one"
    ),
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH, and CHROMIUM names none"),
]


def run_in_browser(*arguments: str) -> str:
    """Return what `tests.browser.look` prints, when it ends well."""
    command = [PYTHON, "-m", "tests.browser.look", CHROMIUM, *arguments]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_page_works_in_chromium(tmp_path: Path) -> None:
    """It also logs no errors, uses no network and opens no dialogs."""
    reports = {
        "rich": rich_report(),
        "few": rich_report(12, 5),
        "small": rich_report(58, 80),
        "one": one_box_report(),
        "hostile": hostile_report(),
    }
    for name, report in reports.items():
        (tmp_path / f"{name}.html").write_bytes(render_page(report))
    problems = json.loads(run_in_browser(str(tmp_path)))
    assert len(problems) == 7 and not any(problems.values()), problems


def test_screenshots_in_the_documents_are_of_this_page(tmp_path: Path) -> None:
    """Fonts may differ, parts of the page may not."""
    folders = {split: TEST_DATA / f"coco_{split}" for split in ("train", "val")}
    images = (f"{split}={folder}/images" for split, folder in folders.items())
    files = (f"{split}={folder}/annotations/instances.json" for split, folder in folders.items())
    out, made = tmp_path / "coco-tfrec", Path(SCREENSHOTS or tmp_path).absolute()
    flags = ("--images", *images, "--annotations", *files, "--features", "boxes,masks")
    committed_by(coco.run, out, *flags)
    run_in_browser(f"{out}/report.html", f"{made}/report")
    for name in ("report-light.jpg", "report-dark.jpg"):
        with Image.open(PROJECT / "docs" / name) as shown, Image.open(made / name) as new:
            assert shown.size == new.size
            coarse = [
                np.asarray(image.convert("L").resize((48, 32)), int) for image in (shown, new)
            ]
        assert coarse[1].std() > 20, "blank"
        assert np.abs(coarse[0] - coarse[1]).mean() < 8, f"{name} is old: make screenshots"
