"""How fast the page of `nearsight app` responds in a real browser, and what it looks like.

    python benchmarks/page.py RUN... [--similar DATA] [--out FILE.json] [--shots DIR]

The page runs in a process of its own, as for a user. "First" is the time from opening the address to the first maps,
then come clicks and other samples; goals are 2 s and 0.5 s. `--shots` saves the page, wide and narrow, light and dark.
Needs playwright with Chromium.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from nearsight.atomic import write_whole

TILE = "#ns-model-1 .ns-panel img"
SHOWN = "[...document.querySelectorAll('#ns-results .ns-panel img')].map(image => image.src).join()"
PATIENCE = 300  # seconds
CLICKS, SAMPLES = 10, 4


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the page is there."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5).read()
            return
        time.sleep(0.2)
    raise RuntimeError(f"The page did not start within {PATIENCE} s.")


def seconds_until_new(page: Page, act: Any) -> float:
    """Time from an act until the pictures of the models are others."""
    before = page.evaluate(SHOWN)
    began = time.perf_counter()
    act()
    page.wait_for_function(f"old => {SHOWN} !== old", arg=before, timeout=1000 * PATIENCE, polling=10)
    return time.perf_counter() - began


def measure(page: Page, url: str) -> dict[str, Any]:
    """Seconds of the first view, of clicks, and of other images."""
    began = time.perf_counter()
    page.goto(url)
    page.wait_for_selector(TILE, timeout=1000 * PATIENCE)
    first = time.perf_counter() - began
    random = np.random.default_rng(0)
    image = page.locator("#ns-image img")
    page.wait_for_function("document.querySelector('#ns-image img').naturalWidth > 0")

    def click() -> None:
        box = image.bounding_box()
        assert box is not None
        across, down = random.uniform(0.1, 0.9, 2)
        image.click(position={"x": across * box["width"], "y": down * box["height"]})

    clicks = [seconds_until_new(page, click) for _ in range(CLICKS)]
    samples = page.locator("#ns-samples .thumbnail-item")
    others = [seconds_until_new(page, samples.nth(number).click) for number in range(1, 1 + SAMPLES)]
    return {"first": first, "clicks": clicks, "images": others}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--similar")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--port", type=int, default=7951)
    given = parser.parse_args()
    command = [sys.executable, "-m", "nearsight", "app", *given.runs, "--port", str(given.port)]
    command += ["--similar", given.similar] if given.similar else []
    url = f"http://127.0.0.1:{given.port}"
    server = subprocess.Popen(command)
    try:
        wait_for(url, server)
        with sync_playwright() as play:
            program = shutil.which("chromium") or shutil.which("google-chrome")
            browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            load = os.getloadavg()[0]
            found = measure(page, url) | {"runs": given.runs, "load": load, "cores": os.cpu_count()}
            told = {key: round(float(np.median(found[key])), 2) for key in ("first", "clicks", "images")}
            print(f"median seconds {told}, load {load:.1f} on {os.cpu_count()} cores", file=sys.stderr)
            for width, scheme in ((1400, "light"), (390, "light"), (1400, "dark")) if given.shots else ():
                given.shots.mkdir(parents=True, exist_ok=True)
                shown = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                shown.goto(url)
                shown.wait_for_selector(TILE, timeout=1000 * PATIENCE)
                shown.wait_for_timeout(1000)
                shown.screenshot(path=given.shots / f"{width}-{scheme}.png", full_page=True)
            browser.close()
        if given.out:
            write_whole(given.out, (json.dumps(found, indent=1) + "\n").encode())
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
