"""A headless Chromium and an explorer; `python tests/explorer/browser.py docs/images` makes the screenshots."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

ROOT = Path(__file__).parents[2]
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)


@contextmanager
def explorer(*args: str) -> Iterator[str]:
    """`igr explore` in a process of its own: the address that it says, and Ctrl-C at the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "igr", "explore", "--no-browser", "--port", str(port), *args]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"The explorer is at (http://\S+); Ctrl-C ends it\n", line)
            assert found, line or process.stderr.read()
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)
        errors = process.stderr.read()
        assert process.returncode == 0, errors
        assert errors == "", errors


@contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[webdriver.Chrome]:
    """A window that knows nothing of earlier ones, and keeps its console and its requests."""
    folder = tempfile.mkdtemp()
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in [*FLAGS.split(), f"--user-data-dir={folder}", f"--window-size={width},{height}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()
        shutil.rmtree(folder, ignore_errors=True)


def requests(driver: webdriver.Chrome) -> list[str]:
    """The addresses of what pages have asked a network for since the last call."""
    messages = [json.loads(each["message"])["message"] for each in driver.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [each for each in asked if each.startswith(("http", "ws"))]


def wait(until: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def find(driver: webdriver.Chrome, selector: str):
    wait(lambda: driver.find_elements(By.CSS_SELECTOR, selector))
    return driver.find_element(By.CSS_SELECTOR, selector)


def open_tab(driver: webdriver.Chrome, name: str) -> None:
    wait(lambda: driver.find_elements(By.CSS_SELECTOR, ".tab"))
    next(each for each in driver.find_elements(By.CSS_SELECTOR, ".tab") if each.text == name).click()


def picture(driver: webdriver.Chrome, name: str) -> str:
    """What is painted, as a string that is another one for another picture."""
    return driver.execute_script("return document.getElementById(arguments[0]).toDataURL()", f"picture-{name}")


def screenshots(folder: Path) -> None:
    """The pictures of the docs, at the width of a small laptop."""
    with explorer() as url, browser(1280, 900) as driver:

        def shoot(name: str) -> None:
            frame = "return window.outerHeight - window.innerHeight + document.documentElement.scrollHeight"
            driver.set_window_size(1280, 400)
            driver.set_window_size(1280, driver.execute_script(frame))
            time.sleep(1.0)
            driver.save_screenshot(str(folder / f"explorer-{name}.png"))

        driver.get(url)
        wait(lambda: find(driver, "#facts-gs").text)
        for key in (Keys.ARROW_RIGHT, Keys.ARROW_LEFT):  # there and back, so that no time of the first moment is shown
            find(driver, "#mu-1 [role=slider]").send_keys(key)
            time.sleep(1.0)
        shoot("relaxations")
        open_tab(driver, "Fit")
        find(driver, "#fit-start").click()
        wait(lambda: "finished" in find(driver, "#fit-facts").text, 60)
        shoot("fit")
        open_tab(driver, "Reproduction")
        wait(lambda: driver.find_elements(By.CSS_SELECTOR, "#curves .legendtext"))
        shoot("reproduction")


if __name__ == "__main__":
    screenshots(Path(sys.argv[1]))
