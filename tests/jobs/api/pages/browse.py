"""Looks at the pages in a real browser, as a person does, and prints what it found as JSON.

python browse.py URL TOKEN AXE FOLDER LOG REPORT

The interpreter of the environment that has Playwright runs it, which needs nothing of the project. AXE is axe-core's
script; screenshots are written into FOLDER; LOG is the driver's log of the run sr, into which lines are written while
it is followed; REPORT is the report of the run large.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, FloatRect, Page, sync_playwright

# Of a desk and of a phone.
SIZES = {"wide": (1280, 900), "phone": (390, 844)}
TIMEOUT_MS = 20_000


class Visit:
    """One browser at one size.

    Attributes:
        found: Violations of axe by page, and what the browser's console complained about.
    """

    def __init__(self, context: BrowserContext, axe: str, folder: Path, size: str):
        self.page: Page = context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self._axe, self._folder, self.size = axe, folder, size
        self.found: list[str] = []
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.found.append(f"{self.size} {self.page.url}: {kind}: {text}")

    def look(self, name: str, until: str = "footer") -> None:
        """Takes a screenshot, has axe check the page, and checks that nothing is cut off at the side."""
        width, height = self.page.evaluate(f"() => [innerWidth, document.querySelector('{until}').offsetTop]")
        area: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
        self.page.screenshot(path=self._folder / f"{name}-{self.size}.png", full_page=True, clip=area)
        self.page.evaluate(self._axe)
        for item in self.page.evaluate("() => axe.run(document)")["violations"]:
            places = "; ".join(node["html"][:200] for node in item["nodes"])
            self.found.append(f"{self.size} {name}: {item['id']}: {item['help']}: {places}")
        if self.page.evaluate("() => document.scrollingElement.scrollWidth > innerWidth"):
            self.found.append(f"{self.size} {name}: wider than the screen")


def walk(visit: Visit, url: str, token: str, log: Path, report: Path) -> dict[str, Any]:
    """Signs in, and goes from page to page; gives what was seen."""
    page = visit.page
    page.goto(url)
    visit.look("sign-in")
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    visit.look("sign-in-refused")
    visit.found = [text for text in visit.found if "401" not in text]  # that it was refused is no complaint
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/runs")
    visit.look("runs")
    seen: dict[str, Any] = {"first focus": focus_after_tab(page)}

    page.get_by_role("checkbox", name="Compare small").check()
    page.get_by_role("checkbox", name="Compare large").check()
    # The list was loaded anew in the meantime, and what was ticked stays so.
    with page.expect_response(lambda response: response.url.endswith("/ui/runs")):
        pass
    page.wait_for_function("() => document.querySelectorAll('input:checked').length === 2")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("heading", name="What differs").wait_for()
    visit.look("compare")

    page.goto(f"{url}/ui/runs/sr")
    page.get_by_text("of the driver").wait_for()
    page.get_by_text("Clips per second").wait_for()
    visit.look("run", until="#config-title")
    with log.open("a", encoding="utf-8") as file:
        file.write(f"seen by <{visit.size}>\n")
    page.get_by_text(f"seen by <{visit.size}>").wait_for()
    seen["log ends in view"] = page.evaluate("() => Math.abs(document.querySelector('.log').scrollTop) < 2")

    page.goto(f"{url}/ui/usage")
    visit.look("usage")
    page.goto(f"{url}/ui/runs/large")
    page.get_by_role("link", name="Report").click()
    page.get_by_role("heading", name="Curves").wait_for()
    seen["report is styled"] = page.evaluate("() => getComputedStyle(document.querySelector('.numbers')).display")
    # Where it is shown, no script runs, not even axe; it is looked at as the file that it is.
    page.goto(report.as_uri())
    visit.look("report")
    page.goto(f"{url}/ui/runs/none")
    visit.look("not-found")
    visit.found = [text for text in visit.found if "404" not in text]
    return seen


def stop(visit: Visit, url: str) -> dict[str, Any]:
    """Stops a run by keyboard, and sees its state change without loading the page again."""
    page = visit.page
    page.goto(f"{url}/ui/runs/sr")
    page.get_by_role("link", name="Stop…").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Stop sr?").wait_for()
    visit.look("stop")
    page.get_by_role("button", name="Stop the run").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/runs/sr")
    page.get_by_text("stopping, as ana requested").wait_for()
    return {"asked": "ok"}


def focus_after_tab(page: Page) -> str:
    page.keyboard.press("Tab")
    return str(page.evaluate("() => document.activeElement.textContent"))


def main(url: str, token: str, axe: str, folder: str, log: str, report: str) -> None:
    """Walks at each size, and once in the dark."""
    script, results = Path(axe).read_text(encoding="utf-8"), {}
    found: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for size, (width, height) in SIZES.items():
            with chromium.new_context(viewport={"width": width, "height": height}) as context:
                visit = Visit(context, script, Path(folder), size)
                results[size] = walk(visit, url, token, Path(log), Path(report))
                found += visit.found
        with chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark") as context:
            visit = Visit(context, script, Path(folder), "dark")
            results["dark"] = walk(visit, url, token, Path(log), Path(report)) | stop(visit, url)
            found += visit.found
        chromium.close()
    print(json.dumps({"found": found, "seen": results}))


if __name__ == "__main__":
    main(*sys.argv[1:])
