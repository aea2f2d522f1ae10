#!/usr/bin/env python3
"""The site and the pages of --html in headless Chromium: axe-core finds no violation, nothing is wider than the window, and
the keyboard reaches every control and shows it. At 400 and 1400 pixels, light and dark. The site's search finds the page of each
question.

Needs Chromium (SHARD_CHROMIUM, or one in PATH), and playwright and axe-playwright-python for Python, which contains
axe-core; it downloads nothing. Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data, SHARD_SITE the site
that scripts/site built.
"""
import functools
import http.server
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import unittest
from pathlib import Path

from chromium import CHROMIUM, BrowserTest, sync_playwright
from questions import QUESTIONS

try:
    AXE = Path(importlib.util.find_spec("axe_playwright_python").submodule_search_locations[0], "axe.min.js").read_text()
except (AttributeError, OSError):
    AXE = None

SHARDCTL = os.path.abspath(os.environ["SHARDCTL"])
DATA = Path(os.environ["SHARD_DATA"]).resolve()
SITE = Path(os.environ["SHARD_SITE"]).resolve()
WIDTHS = (400, 1400)
SCHEMES = ("light", "dark")
# Pages of each kind: tables, code, lists, pictures.
PAGES = ("index.html", "docs/start.html", "docs/troubleshooting.html", "docs/stores.html", "docs/library.html", "docs/faq.html",
         "docs/architecture.html", "docs/html.html", "formats/dcp/index.html", "tests/RESULTS.html")
MESSAGES = ("the end record is missing", "is not an opcode of Python", "cannot choose which checkpoint of", "contradicts a world of")
FINDINGS = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.flatMap(
  rule => rule.nodes.map(node => `${rule.id}: ${node.target.join(" ")}: ${node.failureSummary.replace(/\\s+/g, " ")}`))"""
# The element that has the focus, as a text; null after the last one. A caret shows the focus of a search.
FOCUSED = """() => {
  const element = document.activeElement;
  if (element === document.body || element === null) return null;
  window.focused = element;
  const words = (element.getAttribute("aria-label") || element.textContent || "").trim().slice(0, 40);
  return {name: `${element.tagName}.${element.className} ${words}`, hasCaret: element.matches("input[type=search], input[type=text]")};
}"""

# The pages that a search found, once; null before it has ended.
RESULTS = """() => {
  const links = [...document.querySelectorAll(".md-search-result__link")];
  return links.length > 0 ? [...new Set(links.map(each => new URL(each.href).pathname.slice(1)))] : null;
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Accessible(BrowserTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        super().tearDownClass()

    def site_pages(self) -> dict[str, str]:
        names = [*PAGES, *(str(path.relative_to(SITE)) for path in sorted(SITE.glob("docs/answers/*.html")))]
        return {name: f"http://127.0.0.1:{self.server.server_port}/{name}" for name in names}

    def reports(self) -> dict[str, str]:
        """The pages of inspect, verify and diff, with findings."""
        def run(name: str, *words: str) -> None:
            done = subprocess.run([SHARDCTL, *words, "--html", f"{name}.html", "-q"], cwd=self.work, capture_output=True, text=True)
            self.assertIn(done.returncode, (0, 1), done.stderr)
        if not (self.work / "diff.html").exists():
            shutil.copytree(DATA / "demo/ckpt", self.work / "damaged")
            os.truncate(self.work / "damaged/__2_0.distcp", 9000)
            subprocess.run([SHARDCTL, "average", str(DATA / "demo/ckpt"), str(DATA / "demo/ckpt"), "-o", "other", "-q"], cwd=self.work)
            run("inspect", "inspect", str(DATA / "demo/ckpt"))
            run("verify", "verify", "damaged")
            run("diff", "diff", str(DATA / "demo/ckpt"), str(DATA / "dcp/four_ranks"))
        return {name: (self.work / f"{name}.html").as_uri() for name in ("inspect", "verify", "diff")}

    def opened(self, address: str, width: int, scheme: str):
        page = self.browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
        self.addCleanup(page.close)
        page.set_default_timeout(120_000)  # A busy machine takes longer than playwright's 30 s.
        page.goto(address)
        return page

    def check(self, pages: dict[str, str]) -> None:
        findings = []
        for scheme in SCHEMES:
            for width in WIDTHS:
                for name, address in pages.items():
                    page = self.opened(address, width, scheme)
                    page.evaluate(AXE)
                    found = page.evaluate(FINDINGS)
                    if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                        found.append(f"it is {wide} pixels wide")
                    findings += [f"{name}, {width}, {scheme}: {finding}" for finding in found]
                    page.close()
        self.assertEqual(findings, [], "\n".join(findings))

    def test_axe_finds_nothing_on_the_site(self):
        self.check(self.site_pages())

    def test_axe_finds_nothing_in_the_reports(self):
        self.check(self.reports())

    def test_axe_finds_what_is_wrong(self):
        page = self.opened(self.reports()["inspect"], 1400, "light")
        page.evaluate("document.body.append(Object.assign(document.createElement('button'), {className: 'nameless'}))")
        page.evaluate(AXE)
        self.assertIn("button-name", " ".join(page.evaluate(FINDINGS)))

    def test_the_search_finds_the_page_of_each_question_and_message(self):
        page = self.opened(self.site_pages()["index.html"], 1400, "light")
        missed = []
        for question, answer in {**QUESTIONS, **dict.fromkeys(MESSAGES, "docs/troubleshooting.html")}.items():
            page.evaluate("document.querySelector('.md-search-result__list').replaceChildren()")
            page.fill("input[data-md-component=search-query]", question)
            page.keyboard.press("Shift")  # The site searches when a key is released.
            found = page.wait_for_function(RESULTS).json_value()[:3]
            if answer not in found:
                missed.append(f"{question}: {answer} is not in {found}")
        self.assertEqual(missed, [], "\n".join(missed))

    def picture(self, page) -> bytes:
        return page.screenshot(animations="disabled", caret="hide")

    def check_keys(self, address: str, width: int, least: int) -> None:
        """Tab visits controls and leaves the page at its end: no trap. Each looks different with the focus."""
        page = self.opened(address, width, "light")
        seen, unseen = [], []
        for _ in range(600):
            page.keyboard.press("Tab")
            element = page.evaluate(FOCUSED)
            if element is None:
                break
            seen.append(element["name"])
            focused = self.picture(page)
            page.evaluate("focused.blur()")
            if self.picture(page) == focused and not element["hasCaret"]:
                unseen.append(element["name"])
            page.evaluate("focused.focus({preventScroll: true, focusVisible: true})")
        else:
            self.fail(f"{address}: Tab does not leave the page")
        self.assertGreaterEqual(len(seen), least, seen)
        self.assertEqual(unseen, [], address)

    def test_keyboard_on_the_site(self):
        for width in WIDTHS:
            self.check_keys(self.site_pages()["docs/answers/merge-distcp.html"], width, 5)

    def test_keyboard_in_the_reports(self):
        for address in self.reports().values():
            for width in WIDTHS:
                self.check_keys(address, width, 2)


if __name__ == "__main__":
    if AXE is None or CHROMIUM is None or sync_playwright is None or not (SITE / "index.html").exists():
        print("skipped: needs Chromium, playwright and axe-playwright-python for Python, and the site of scripts/site")
        sys.exit(77)
    unittest.main(verbosity=2)
