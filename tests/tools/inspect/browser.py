"""Chromium, driven from here: the system's own, which nothing downloads."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from tests.polling import SECONDS

HOW_TO = "Chromium is not installed; on Debian: apt-get install --no-install-recommends chromium chromium-driver"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
# No sandbox: its own needs rights that containers lack, and the pages are ours. The others keep it from calling home.
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


def installed() -> tuple[str, str] | None:
    """The paths of the browser and of its driver, or None."""
    browser = next((path for name in _NAMES if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def browser() -> Iterator[Chrome]:
    """A fresh browser with a new profile.

    Raises
    ------
    FileNotFoundError
        If it is not installed.
    """
    found = installed()
    if found is None:
        raise FileNotFoundError(HOW_TO)
    options = Options()
    options.binary_location = found[0]
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # It binds a socket there, whose address has room for about 100 bytes: TMPDIR may be too long.
    with TemporaryDirectory(prefix="streamxf-", dir="/tmp") as folder:
        for flag in (*_FLAGS, f"--user-data-dir={folder}/profile"):
            options.add_argument(flag)
        driver = Chrome(options=options, service=Service(found[1], env=os.environ | {"TMPDIR": folder}))
        driver.set_script_timeout(SECONDS)
        try:
            yield driver
        finally:
            driver.quit()


def show(driver: Chrome, file: Path, *, width: int = 1280, height: int = 900, theme: str = "light") -> None:
    """Open a file in a window of that size, for a reader who prefers light or dark."""
    feature = {"name": "prefers-color-scheme", "value": theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(file.as_uri())


def wait_in(driver: Chrome, condition: Callable[[Chrome], object]) -> None:
    """Until that holds, with as much patience as a busy machine needs."""
    WebDriverWait(driver, SECONDS).until(condition)


def requests(driver: Chrome) -> list[str]:
    """What the browser asked for since it was last asked this."""
    found: list[str] = []
    for entry in driver.get_log("performance"):
        message: dict[str, Any] = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
    return found
