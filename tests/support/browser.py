"""A real browser without a window: Chromium, driven by Selenium.

Both programs come from the distribution (`scripts/test` installs them where it may); nothing is downloaded here.
"""

from __future__ import annotations

import base64
import shutil
from typing import TYPE_CHECKING, Any, Final, Self

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from support import processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from selenium.webdriver.remote.webelement import WebElement

__all__ = ["Browser", "find_program"]

PATIENCE_S: Final = 20.0
CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome")
_HOW: Final = "on Debian: apt-get install chromium chromium-driver"


def find_program(*names: str) -> str:
    """Return the first installed one of these programs. Raises RuntimeError, which names the remedy."""
    for name in names:
        if found := shutil.which(name):
            return found
    raise RuntimeError(f"The tests of the status page need the program {names[0]}; {_HOW}")


class Browser:
    """One window; leaving the context ends the browser."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = find_program(*CHROMIUM)
        for argument in (
            "headless=new",
            "no-sandbox",  # Chromium refuses to start as root with its sandbox; it loads only our own page
            "disable-dev-shm-usage",
            "disable-gpu",
            "disable-breakpad",
            "disable-background-networking",
            "no-first-run",
            f"user-data-dir={profile}",
        ):
            options.add_argument(f"--{argument}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(find_program("chromedriver"))
        self.driver = webdriver.Chrome(options, service)
        processes.long_lived_trees.add(service.process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.quit()

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page in a window of this size, in CSS pixels."""
        self.driver.get("about:blank")  # the page before falls silent
        self.console_errors()
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send_command("Emulation.setEmulatedMedia", features=[scheme])
        self.driver.get(url)

    def resize(self, width: int, height: int = 900) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._send_command("Emulation.setDeviceMetricsOverride", **metrics)

    def _send_command(self, command: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.driver.execute_cdp_cmd(command, arguments)
        return answer

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script and return its result."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        """Return the first element of a CSS selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        """Return the visible text of the element."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        """Return the visible texts of all elements of a selector."""
        found = "Array.from(document.querySelectorAll(arguments[0]), (each) => each.innerText)"
        return [str(text) for text in self.run(f"return {found}", selector)]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds."""
        WebDriverWait(self.driver, PATIENCE_S, 0.1).until(lambda _: condition(), f"waited for {what}:\n{self.text()}")

    def console_errors(self) -> list[str]:
        """Return the new lines of the browser's console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def screenshot(self, path: Path, largest: int = 100_000) -> None:
        """Save a picture of the page, beyond the window, at most `largest` pixels high."""
        height = min(largest, self.run("return document.documentElement.scrollHeight"))
        width = self.run("return window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self._send_command("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))
