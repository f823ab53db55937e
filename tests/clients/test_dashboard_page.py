"""The dashboard in a headless Chromium, while real replies are decoded."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_scene import CHROMIUM_FLAGS, Scene, begin, chromium
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

pytestmark = pytest.mark.clients

AXE = "axe-core@4.14.1"
WAIT_MS = 60_000
# A reply that is sent while the daemon goes away, or comes back, is told of in the console.
LOST = "net::ERR_"


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    scene = begin()
    scene.work()
    yield scene
    scene.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = chromium()
    assert found is not None, "install Chromium (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(scene: Scene, browser: Browser) -> Iterator[Page]:
    """The dashboard; at the end nothing may have been said in its console."""
    page = browser.new_page(viewport={"width": 1120, "height": 900})
    page.set_default_timeout(WAIT_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(scene.url)
    expect(page.locator("#connection")).to_have_text("ready", timeout=WAIT_MS)
    yield page
    page.close()
    assert [line for line in said if LOST not in line] == []


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script of axe-core, from its registry."""
    npm = shutil.which("npm")
    assert npm is not None, "install Node.js with npm"
    folder = tmp_path_factory.mktemp("axe")
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", AXE]
    subprocess.run(install, cwd=folder, check=True, capture_output=True)
    return folder / "node_modules/axe-core/axe.min.js"


def test_a_reply_is_watched(scene: Scene, page: Page) -> None:
    with scene.busy():
        expect(page.locator("#rate-note")).to_have_text("decoding 1 request", timeout=WAIT_MS)
        page.wait_for_selector("#rate-chart path.line")
        page.wait_for_selector(".running")
        # A busy machine may decode nothing for a while.
        expect(page.locator("#rate")).to_have_text(re.compile("[1-9]"), timeout=WAIT_MS)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.locator("#connection").is_visible()
    for regime in ("code", "tool calls"):
        expect(page.locator("#regimes tbody")).to_contain_text(regime, timeout=WAIT_MS)
    page.locator("#surplus-timeline g rect").nth(5).wait_for(state="attached")
    page.locator("#acceptance-chart circle").first.wait_for(state="attached")
    page.locator("#cache-map g rect").nth(10).wait_for(state="attached")
    for file in ("orders.py", "stock.py", "prices.py"):
        expect(page.locator("#cache-files tbody")).to_contain_text(file, timeout=WAIT_MS)
    expect(page.locator("#past")).to_contain_text("suggestion", timeout=WAIT_MS)
    assert "asked not to draft" in page.locator("#past").text_content()
    page.get_by_text("Show all").click()
    assert "asked not to draft" in page.inner_text("#past")
    assert "weights" in page.inner_text("#memory")


def test_by_keyboard_alone(scene: Scene, page: Page) -> None:
    scene.chat("Write a function that adds two numbers.", 40)
    page.wait_for_selector("#past tr.main")
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the requests"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.locator(":focus").get_attribute("aria-expanded") == "false"
    page.keyboard.press("Enter")
    assert page.locator(":focus").get_attribute("aria-expanded") == "true"
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Replay without drafts"
    page.keyboard.press("Enter")
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text("The same", timeout=WAIT_MS)
    expect(verdict).to_contain_text("times as long")
    # What somebody is in the middle of stays where it is when more arrives.
    scene.chat("Explain what a list is.", 20)
    page.wait_for_selector("#past tr.main:nth-of-type(3)")
    assert page.locator(":focus").inner_text() == "Replay without drafts"
    assert verdict.is_visible()


def test_a_narrow_window(page: Page) -> None:
    page.set_viewport_size({"width": 340, "height": 700})
    page.locator("button.fold").first.click()
    for scroll in ("document.documentElement", "document.body"):
        assert page.evaluate(f"{scroll}.scrollWidth") <= 340


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_for_everybody(scene: Scene, browser: Browser, axe: Path, scheme: str) -> None:
    """axe-core's rules, contrast among them. It is injected, which the page's policy forbids."""
    context = browser.new_context(bypass_csp=True, color_scheme=scheme)
    page = context.new_page()
    page.goto(scene.url)
    page.locator("button.fold").first.click()
    page.add_script_tag(path=axe)
    found = page.evaluate("axe.run()")
    context.close()
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found["violations"]] == []


def test_a_daemon_that_goes_and_comes_back(browser: Browser) -> None:
    scene = begin()
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(scene.url)
    assert "No request yet" in page.inner_text("#past")
    scene.chat("Write a function.", 10)
    page.wait_for_selector("#past tr.main")
    scene.stop()
    expect(page.locator("#connection")).to_contain_text("waiting for it", timeout=WAIT_MS)
    assert page.locator("#past tr.main").count() == 1
    again = begin(int(scene.url.rpartition(":")[2]))
    expect(page.locator("#connection")).to_have_text("ready", timeout=WAIT_MS)
    expect(page.locator("#past")).to_contain_text("No request yet", timeout=WAIT_MS)
    page.close()
    again.close()
    scene.close()


@pytest.fixture
def locked() -> Iterator[Scene]:
    """A daemon that demands a key."""
    scene = begin(PILLION_HTTP_API_KEY="a-key")
    yield scene
    scene.close()


def test_with_a_key_the_browser_asks_for_it(locked: Scene, browser: Browser) -> None:
    without = browser.new_page()
    # What a browser without a person in front of it makes of being asked.
    with pytest.raises(Error, match="ERR_INVALID_AUTH_CREDENTIALS"):
        without.goto(locked.url)
    given = {"username": "any", "password": "a-key", "origin": locked.url}
    page = browser.new_context(http_credentials=given).new_page()
    page.goto(locked.url)
    expect(page.locator("#connection")).to_have_text("ready", timeout=WAIT_MS)
