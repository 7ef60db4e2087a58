"""The report's page in Chromium, used by mouse, by keyboard and without scripts.

`.ci/run` installs Playwright and axe-core in their own environment and names its Python in
BROWSER_PYTHON; CHROMIUM names the browser if it is not on PATH.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from beam_tfrec.transforms.report.page import render_page
from tests.report_contents import hostile_report, one_box_report, rich_report

PROJECT = Path(__file__).parents[1]
PYTHON = os.environ.get("BROWSER_PYTHON", "")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not PYTHON, reason="BROWSER_PYTHON names no Python with Playwright; .ci/run installs one"
    ),
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH, and CHROMIUM names none"),
]


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
    command = [PYTHON, "-m", "tests.browser.look", CHROMIUM, str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    problems = json.loads(done.stdout)
    assert len(problems) == 9 and not any(problems.values()), problems
