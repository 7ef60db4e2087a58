"""Look at pages in Chromium, and print what was seen as JSON.

`python -m tests.browser.look CHROMIUM FOLDER` opens the pages of a folder. It imports nothing of
the project, since it runs where Playwright is; `tests/test_report_in_browser.py` compares.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
LAPTOP, PHONE = (1400, 900), (400, 800)
SCHEMES = ("light", "dark")

FOCUS = """() => {
  const at = document.activeElement;
  return at === document.body ? "" : at.id || at.className || at.getAttribute("href") || at.tagName;
}"""
STOPS = """() => [
  ...document.querySelectorAll("a[href], button:not(:disabled), input, select, summary"),
].filter((e) => e.checkVisibility() && !(e.type === "radio" && !e.checked)).length"""
CLASS_ROWS = """() => [...document.querySelectorAll("#class-table tbody tr")]
  .filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"""
SHOWN = "() => [...document.querySelectorAll('.tile')].filter(t => t.checkVisibility()).length"
PLACES = """() => {
  const of = (name) => {
    const r = document.querySelector(name).getBoundingClientRect();
    return [r.left, r.top, r.width, r.height];
  };
  const dots = [...document.querySelectorAll(".overlay circle")].map((dot) => {
    const r = dot.getBoundingClientRect();
    return [r.left + r.width / 2, r.top + r.height / 2];
  });
  return { image: of(".frame img"), box: of(".overlay .box rect:last-child"), dots };
}"""
MISPLACED = """() => [...document.querySelectorAll(".tile")].filter((tile) => {
  const [a, b] = ["img", ".overlay"].map((n) => tile.querySelector(n).getBoundingClientRect());
  const same = ["left", "top", "width", "height"].every((n) => Math.abs(a[n] - b[n]) < 0.05);
  const image = tile.querySelector("img");
  const ratio = image.naturalWidth / image.naturalHeight;
  return !same || a.width < 4 || Math.abs(a.width - a.height * ratio) > 1 + ratio;
}).length"""


class Looker:
    """A browser, and what pages did that they should not.

    Attributes:
        problems: what a page wrote to its console, threw, asked a network for or showed as a
            dialog.
    """

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._folder = folder
        self.problems: list[str] = []

    def context(self, size: tuple[int, int] = LAPTOP, **options: Any) -> BrowserContext:
        """Return a window of its own."""
        width, height = size
        return self._browser.new_context(viewport={"width": width, "height": height}, **options)

    def open(self, context: BrowserContext, name: str) -> Page:
        """Open a page, and note whatever it does."""
        page = context.new_page()
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


def filters(looker: Looker) -> dict[str, Any]:
    """Choose a split and a class, find classes, and go from a class to its pictures."""
    page = looker.open(looker.context(), "rich")
    seen: dict[str, Any] = {"all": page.evaluate(SHOWN)}
    page.select_option("#filter-split", label="val")
    seen["val"] = page.evaluate(SHOWN)
    page.select_option("#filter-class", label="bicycle")
    seen["bicycles of val"] = page.evaluate(SHOWN)
    seen["said"] = page.inner_text("#filter-count")
    page.fill("#class-find", "CYCLE")
    seen["found"] = page.evaluate(CLASS_ROWS)
    page.click("#class-table a[data-class='2']")
    seen["by link"] = page.evaluate(SHOWN)
    return seen


def drawn(looker: Looker) -> dict[str, Any]:
    """Switch boxes, masks, keypoints and names off."""
    page = looker.open(looker.context(), "rich")
    seen = {}
    parts = {
        "boxes": ".overlay .box",
        "masks": ".mask",
        "points": ".overlay .points",
        "names": ".overlay text",
    }
    for switch, part in parts.items():
        # Chromium calls a part of an SVG visible that is not displayed, but it has no size.
        shown = f"""() => [...document.querySelectorAll('.tile {part}')].filter(
            (part) => part.getBoundingClientRect().width).length"""
        before = page.evaluate(shown)
        page.uncheck(f"#show-{switch}")
        seen[switch] = [before > 0, page.evaluate(shown)]
    return seen


def lightbox(looker: Looker) -> dict[str, Any]:
    """Enlarge a picture by keys alone, walk on, and close."""
    page = looker.open(looker.context(), "rich")
    page.locator(".open").nth(2).focus()
    page.keyboard.press("Enter")
    seen: dict[str, Any] = {"open": page.evaluate("() => document.getElementById('lightbox').open")}
    place = lambda: page.inner_text("#lightbox-place")  # noqa: E731
    seen["places"] = [place()]
    for key in ("ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
        seen["places"].append(place())
    seen["facts"] = page.inner_text("#lightbox-facts").split("\n")[:2]
    seen["enlarged"] = page.evaluate(
        "() => document.querySelector('#lightbox img').width"
        " > 1.5 * document.querySelector('.tile img').width"
    )
    page.keyboard.press("Escape")
    seen["closed"] = not page.evaluate("() => document.getElementById('lightbox').open")
    seen["focus is back"] = page.evaluate(
        "() => document.activeElement === document.querySelectorAll('.open')[2]"
    )
    page.select_option("#filter-class", label="bicycle")
    page.locator(".open:visible").first.click()
    seen["filtered"] = place() == f"1 of {page.evaluate(SHOWN)}"
    page.mouse.click(3, 3)
    seen["closed by a click beside it"] = not page.evaluate(
        "() => document.getElementById('lightbox').open"
    )
    return seen


def keyboard(looker: Looker) -> dict[str, Any]:
    """Go through a page by Tab, and use what comes."""
    page = looker.open(looker.context(), "one")
    stops = []
    for _ in range(40):
        page.keyboard.press("Tab")
        stops.append(page.evaluate(FOCUS))
        if not stops[-1]:
            break
    clickable = page.evaluate(STOPS)
    page = looker.open(looker.context(), "one")
    page.keyboard.press("Tab")
    visible = page.evaluate("() => document.activeElement.getBoundingClientRect().top >= 0")
    page.keyboard.press("Enter")
    skipped = page.evaluate(FOCUS)
    return {
        "stops": stops,
        "clickable": clickable,
        "skip link is seen": visible,
        "skips to": skipped,
    }


def sizes(looker: Looker) -> dict[str, Any]:
    """Return how much is wider than the window, and misplaced pictures."""
    seen = {}
    for name in ("rich", "hostile", "small"):
        for size in (LAPTOP, PHONE):
            page = looker.open(looker.context(size), name)
            wider = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            seen[f"{name} {size[0]}"] = [wider, page.evaluate(MISPLACED)]
    return seen


def hostile(looker: Looker) -> dict[str, Any]:
    """Return what a stranger's texts became."""
    page = looker.open(looker.context(), "hostile")
    page.wait_for_timeout(300)
    return {
        "elements": page.evaluate(
            "() => document.querySelectorAll('img[src=x], [onerror], [onload], script ~ *').length"
        ),
        "scripts": page.evaluate("() => document.scripts.length"),
        "heading": page.inner_text("h1"),
        "text": page.inner_text("body"),
        "options": page.evaluate(
            "() => [...document.querySelectorAll('#filter-class option')].map(o => o.textContent)"
        ),
    }


def policy(looker: Looker) -> dict[str, Any]:
    """Try what the page's policy forbids, and return what the browser said."""
    context = looker.context()
    page = context.new_page()
    page.goto((looker._folder / "one.html").as_uri())
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.evaluate(
        """() => {
          const script = document.createElement("p");
          script.setAttribute("style", "color: red");
          document.body.append(script);
          const image = document.createElement("img");
          image.src = "http://127.0.0.1:9/x.png";
          document.body.append(image);
          const style = document.createElement("style");
          style.textContent = "p { color: red }";
          document.body.append(style);
        }"""
    )
    page.wait_for_timeout(300)
    refused = [
        part for part in ("style attribute", "img-src", "style-src") if any(part in s for s in said)
    ]
    inner = page.evaluate(
        "() => { try { document.body.innerHTML = 'x'; } catch (error) { return error.name; } }"
    )
    return {"refused": len(said) >= 3, "directives": refused, "innerHTML": inner}


def axe(looker: Looker) -> dict[str, Any]:
    """Return serious and critical violations that axe-core finds, by page, scheme and width."""
    seen = {}
    views = [("one", LAPTOP), ("hostile", LAPTOP), ("few", LAPTOP), ("few", PHONE)]
    for name, size in views:
        for scheme in SCHEMES:
            page = looker.open(looker.context(size, color_scheme=scheme), name)
            page.evaluate(
                "() => document.querySelectorAll('details').forEach((d) => (d.open = true))"
            )
            seen[f"{name} {size[0]} {scheme}"] = violations(page)
            if name == "few":
                page.locator(".open").first.click()
                seen[f"{name} {size[0]} {scheme}, enlarged"] = violations(page)
    return seen


def violations(page: Page) -> list[str]:
    """Return what axe-core finds serious or critical, and whether it looked at too little."""
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


def without_script(looker: Looker) -> dict[str, Any]:
    """Look at a page where JavaScript is off."""
    context = looker.context(java_script_enabled=False)
    page = looker.open(context, "rich")
    # Playwright evaluates even where a page's own script is off.
    visible = "(s) => [...document.querySelectorAll(s)].filter(e => e.checkVisibility()).length"
    return {
        "tiles": page.evaluate(SHOWN),
        "facts": page.evaluate(visible, ".tile .facts"),
        "controls": page.evaluate(visible, ".filters, .open, dialog, button"),
    }


def known_box(looker: Looker) -> dict[str, Any]:
    """Measure the box of a picture, on a tile at two widths and enlarged."""
    seen: dict[str, Any] = {}
    for size in (LAPTOP, PHONE):
        page = looker.open(looker.context(size), "one")
        page.locator(".frame").first.scroll_into_view_if_needed()
        seen[f"tile {size[0]}"] = page.evaluate(PLACES)
    page = looker.open(looker.context(), "one")
    page.locator(".open").first.click()
    seen["enlarged"] = page.evaluate(PLACES.replace('(".', '("#lightbox .'))
    return seen


LOOKS: tuple[Callable[[Looker], dict[str, Any]], ...] = (
    *(filters, drawn, lightbox, keyboard, sizes, hostile, policy, axe),
    *(without_script, known_box),
)


def main(chromium: str, folder: str) -> None:
    """Look at everything, and print it."""
    seen: dict[str, Any] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, headless=True, args=CHROMIUM_FLAGS
        )
        for look in LOOKS:
            looker = Looker(browser, Path(folder))
            seen[look.__name__] = look(looker)
            seen[look.__name__]["problems"] = looker.problems
        browser.close()
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
