"""Use pages in Chromium as people do, and print the problems as JSON, a list for each look.

`python -m tests.browser.look CHROMIUM FOLDER` opens the pages of a folder. With `REPORT.html NAME`
instead, it takes the screenshots `NAME-light.jpg` and `NAME-dark.jpg` for the documents. It imports
nothing of the project, since it runs in Playwright's environment.
"""

import json
import sys
from pathlib import Path
from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
LAPTOP, PHONE = (1400, 900), (400, 800)
KNOWN_BOX = (0.25, 0.125, 0.5, 0.375)  # of the page `one`

FOCUS = """() => {
  const at = document.activeElement;
  return at === document.body ? "" : at.id || at.className || at.getAttribute("href") || at.tagName;
}"""
CLASS_ROWS = """() => [...document.querySelectorAll("#class-table tbody tr")]
  .filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"""
VISIBLE = "(s) => [...document.querySelectorAll(s)].filter(e => e.checkVisibility()).length"
# Chromium calls undisplayed parts of an SVG visible, but these have no size.
DRAWN = """(s) => [...document.querySelectorAll(".tile " + s)].filter(
    (part) => part.getBoundingClientRect().width).length"""
PLACES = """(where) => {
  const of = (name) => {
    const r = document.querySelector(where + name).getBoundingClientRect();
    return [r.left, r.top, r.width, r.height];
  };
  return { image: of(".frame img"), box: of(".overlay .box rect:last-child") };
}"""
MISPLACED = """() => [...document.querySelectorAll(".tile")].filter((tile) => {
  const [a, b] = ["img", ".overlay"].map((n) => tile.querySelector(n).getBoundingClientRect());
  const same = ["left", "top", "width", "height"].every((n) => Math.abs(a[n] - b[n]) < 0.05);
  const image = tile.querySelector("img");
  const ratio = image.naturalWidth / image.naturalHeight;
  return !same || a.width < 4 || Math.abs(a.width - a.height * ratio) > 1 + ratio;
}).length"""


class Looker:
    """A browser, and the problems of its pages.

    Attributes:
        problems: what a page wrote to its console, its errors, requests and dialogs, and what it
            did not do.
    """

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._folder = folder
        self.problems: list[str] = []

    def open(self, name: str, size: tuple[int, int] = LAPTOP, **options: Any) -> Page:
        """Open a page in a new window, and note its errors, requests and dialogs."""
        width, height = size
        viewport = {"width": width, "height": height}
        page = self._browser.new_context(viewport=viewport, **options).new_page()
        url = (self._folder / f"{name}.html").as_uri()
        page.on("console", lambda message: self.problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.problems.append("dialog"), dialog.dismiss()))
        page.on("request", lambda asked: self._note_request(asked.url, url))
        page.goto(url)
        return page

    def _note_request(self, asked: str, own: str) -> None:
        if asked.partition("#")[0] != own and not asked.startswith("data:"):
            self.problems.append(f"request: {asked}")

    def expect(self, what: str, got: object, wanted: object = True) -> None:
        """Note a value that is not the wanted one."""
        if got != wanted:
            self.problems.append(f"{what}: {got!r}, wanted {wanted!r}")


def filters(looker: Looker) -> None:
    """Choose a split and a class, find classes, and go from a class to its pictures."""
    page = looker.open("rich")
    looker.expect("all", page.evaluate(VISIBLE, ".tile"), 96)
    page.select_option("#filter-split", label="val")
    looker.expect("of val", page.evaluate(VISIBLE, ".tile"), 48)
    page.select_option("#filter-class", label="bicycle")
    looker.expect("bicycles of val", page.evaluate(VISIBLE, ".tile"), 22)
    looker.expect("said", page.inner_text("#filter-count"), "22 of 96 pictures")
    page.fill("#class-find", "CYCLE")
    looker.expect("found", page.evaluate(CLASS_ROWS), ["bicycle", "motorcycle"])
    page.click("#class-table a[data-class='2']")
    looker.expect("by link", page.evaluate(VISIBLE, ".tile"), 44)


def drawn(looker: Looker) -> None:
    """Switch boxes, masks, keypoints and names off."""
    page = looker.open("rich")
    parts = {"boxes": ".overlay .box", "masks": ".mask", "points": ".overlay .points"}
    for switch, part in (parts | {"names": ".overlay text"}).items():
        looker.expect(f"{switch} on", page.evaluate(DRAWN, part) > 0)
        page.uncheck(f"#show-{switch}")
        looker.expect(f"{switch} off", page.evaluate(DRAWN, part), 0)


def lightbox(looker: Looker) -> None:
    """Enlarge a picture by keys alone, walk on, and close."""
    page = looker.open("rich")
    is_open = "() => document.getElementById('lightbox').open"
    page.locator(".open").nth(2).focus()
    page.keyboard.press("Enter")
    looker.expect("open", page.evaluate(is_open))
    places = [page.inner_text("#lightbox-place")]
    for key in ("ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
        places.append(page.inner_text("#lightbox-place"))
    looker.expect("places", places, [f"{place} of 96" for place in (3, 4, 3, 2, 1, 96)])
    facts = page.inner_text("#lightbox-facts").split("\n")[:2]
    looker.expect("facts", facts, ["record", "95 of val-00000-of-00001-96.tfrec"])
    width = "(s) => document.querySelector(s).width"
    widths = [page.evaluate(width, f"{where} img") for where in ("#lightbox", ".tile")]
    looker.expect("enlarged", widths[0] > 1.5 * widths[1])
    page.keyboard.press("Escape")
    looker.expect("open after Escape", page.evaluate(is_open), False)
    looker.expect("focus is back", page.evaluate(FOCUS), "open")
    page.select_option("#filter-class", label="bicycle")
    page.locator(".open:visible").first.click()
    looker.expect("among bicycles", page.inner_text("#lightbox-place"), "1 of 44")
    page.mouse.click(3, 3)
    looker.expect("open after a click outside it", page.evaluate(is_open), False)


def sizes(looker: Looker) -> None:
    """Look for contents wider than the window, and for misplaced pictures."""
    for name in ("rich", "hostile", "small"):
        for size in (LAPTOP, PHONE):
            page = looker.open(name, size)
            wider = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            looker.expect(f"{name} {size[0]}", [wider, page.evaluate(MISPLACED)], [0, 0])


def axe(looker: Looker) -> None:
    """Look for serious and critical violations that axe-core finds."""
    views = [("one", LAPTOP), ("hostile", LAPTOP), ("few", LAPTOP), ("few", PHONE)]
    for name, size in views:
        for scheme in ("light", "dark"):
            page = looker.open(name, size, color_scheme=scheme)
            page.evaluate(
                "() => document.querySelectorAll('details').forEach((d) => (d.open = true))"
            )
            looker.expect(f"{name} {size[0]} {scheme}", violations(page), [])
            if name == "few":
                page.locator(".open").first.click()
                looker.expect(f"{name} {size[0]} {scheme}, enlarged", violations(page), [])


def violations(page: Page) -> list[str]:
    """Return the serious and critical findings of axe-core, and a line if it checked too little."""
    found = Axe().run(page).response
    kept = {rule["id"] for rule in found["passes"]}
    return [
        *([] if "color-contrast" in kept and len(kept) >= 10 else [f"kept: {sorted(kept)}"]),
        *(
            f"{rule['id']}: {rule['nodes'][0]['html'][:160]}"
            for rule in found["violations"]
            if rule["impact"] in ("serious", "critical")
        ),
    ]


def without_script(looker: Looker) -> None:
    """Look at a page without JavaScript; Playwright can still evaluate."""
    page = looker.open("rich", java_script_enabled=False)
    looker.expect("tiles", page.evaluate(VISIBLE, ".tile"), 96)
    looker.expect("facts", page.evaluate(VISIBLE, ".tile .facts"), 96)
    looker.expect("controls", page.evaluate(VISIBLE, ".filters, .open, dialog, button"), 0)


def known_box(looker: Looker) -> None:
    """Measure the box of a picture, on a tile at two widths and enlarged."""
    for size, where in ((LAPTOP, ""), (PHONE, ""), (LAPTOP, "#lightbox ")):
        page = looker.open("one", size)
        page.locator(".frame").first.scroll_into_view_if_needed()
        if where:
            page.locator(".open").first.click()
        places = page.evaluate(PLACES, where)
        left, top, width, height = places["image"]
        x, y, w, h = KNOWN_BOX
        wanted = (left + x * width, top + y * height, w * width, h * height)
        off = max(abs(a - b) for a, b in zip(places["box"], wanted, strict=True))
        looker.expect(f"{size[0]} {where}", (width > 100, off < 0.1), (True, True))


def shoot(browser: Browser, report: str, name: str) -> None:
    """Take a screenshot of a report in light, and one in dark."""
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        viewport = {"width": 1200, "height": 800}
        page = browser.new_page(viewport=viewport, color_scheme=scheme)
        page.goto(Path(report).resolve().as_uri())
        page.wait_for_load_state("networkidle")
        page.screenshot(path=f"{name}-{scheme}.jpg", type="jpeg", quality=72)


def problems_of(browser: Browser, folder: Path) -> dict[str, list[str]]:
    """Take all looks, and return the problems of each."""
    problems: dict[str, list[str]] = {}
    for look in (filters, drawn, lightbox, sizes, axe, without_script, known_box):
        looker = Looker(browser, folder)
        look(looker)
        problems[look.__name__] = looker.problems
    return problems


def main(chromium: str, path: str, name: str = "") -> None:
    """Print the problems of the pages in a folder, or take screenshots if there is a name."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, headless=True, args=CHROMIUM_FLAGS
        )
        if name:
            shoot(browser, path, name)
        else:
            json.dump(problems_of(browser, Path(path)), sys.stdout)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
