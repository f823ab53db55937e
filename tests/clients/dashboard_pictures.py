"""The dashboard's screenshots: ``python tests/clients/dashboard_pictures.py [docs]``."""

from __future__ import annotations

import sys
from base64 import b64decode
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from dashboard_scene import CHROMIUM_FLAGS, begin, chromium
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1120, 1000
LIVE_MS = 9000


def take(folder: Path) -> None:
    """Light and dark, while replies are being decoded."""
    scene = begin()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            devtools = page.context.new_cdp_session(page)
            page.goto(scene.url)
            scene.work()
            with scene.busy():
                page.locator("#rate-note", has_text="decoding").wait_for()
                page.wait_for_timeout(LIVE_MS)
                for scheme in ("light", "dark"):
                    page.emulate_media(color_scheme=scheme)
                    height = int(page.evaluate("document.documentElement.scrollHeight"))
                    page.set_viewport_size({"width": WIDTH, "height": height})
                    # Playwright writes PNG and JPEG only, which are three times as large.
                    shot = devtools.send(
                        "Page.captureScreenshot", {"format": "webp", "quality": 78}
                    )
                    (folder / f"dashboard-{scheme}.webp").write_bytes(b64decode(shot["data"]))
            browser.close()
    finally:
        scene.close()


if __name__ == "__main__":
    take(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
