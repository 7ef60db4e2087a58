"""Take screenshots of a report for the documents, one light and one dark.

`python -m tests.browser.shoot CHROMIUM REPORT.html docs/report` writes `docs/report-light.jpg` and
`docs/report-dark.jpg`. It runs in Playwright's environment, like `tests/browser/look.py`; `make
screenshots` gives it a report.
"""

import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

from tests.browser.look import CHROMIUM_FLAGS

WIDTH_PX, HEIGHT_PX = 1200, 800
JPEG_QUALITY = 72
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def main(chromium: str, report: str, name: str) -> None:
    """Write NAME-light.jpg and NAME-dark.jpg."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, headless=True, args=CHROMIUM_FLAGS
        )
        for scheme in SCHEMES:
            page = browser.new_page(
                viewport={"width": WIDTH_PX, "height": HEIGHT_PX}, color_scheme=scheme
            )
            page.goto(Path(report).resolve().as_uri())
            page.wait_for_load_state("networkidle")
            page.screenshot(path=f"{name}-{scheme}.jpg", type="jpeg", quality=JPEG_QUALITY)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
