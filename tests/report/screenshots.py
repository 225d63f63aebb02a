"""Pictures of a report page for the docs: in light colours, in dark ones, and on a phone.

python -m tests.report.screenshots report.html docs/figures
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.report.test_report_browser import FLAGS

WIDE: dict[str, Any] = {"viewport": {"width": 1200, "height": 1000}}
LOOKS: dict[str, dict[str, Any]] = {
    "light": WIDE,
    "dark": {**WIDE, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 1500}, "device_scale_factor": 1.5, "is_mobile": True},
}


def main(file: Path, folder: Path) -> None:
    """Write report-light.png, report-dark.png and report-phone.png."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, look in LOOKS.items():
            page = browser.new_context(**look).new_page()
            page.goto(file.resolve().as_uri())
            place = page.locator(".plot").nth(1)
            place.focus()
            for key in ("Home", *["ArrowRight"] * 8):
                place.press(key)
            page.evaluate("window.scrollTo(0, 0)")
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256)
            picture.save(folder / f"report-{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
