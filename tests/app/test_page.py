"""The page in a real browser: clicks, models, uploads, download, wide and narrow."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from .conftest import running

Open = Callable[..., Any]
TILE = "#ns-model-1 .ns-panel img"


def click(page: Any, x: float, y: float) -> None:
    """Click on the image at fractions of its width and height."""
    image = page.locator("#ns-image img")
    box = image.bounding_box()
    image.click(position={"x": x * box["width"], "y": y * box["height"]})


def after(page: Any, act: Callable[[], object], selector: str = TILE) -> str:
    """What a tile shows after something was done."""
    before = page.locator(selector).first.get_attribute("src")
    act()
    page.wait_for_function(
        "([point, old]) => document.querySelector(point) && document.querySelector(point).src !== old",
        arg=[selector, before],
        timeout=30_000,
    )
    return str(page.locator(selector).first.get_attribute("src"))


def choose(page: Any, box: str, option: str) -> None:
    """Choose from a drop-down list; another one may still be fading out, so its options are found by the input's id."""
    field = page.locator(f"#{box} input")
    field.click()
    options = page.locator(f"[id='{field.get_attribute('aria-controls')}']")
    options.get_by_role("option", name=option, exact=True).click()


def test_a_click_changes_what_both_models_show(open_page: Open) -> None:
    page = open_page()
    assert page.locator("#ns-model-1 h3").inner_text() == "swin_nano"
    assert page.locator("#ns-model-2 h3").inner_text() == "iddwnet_nano"
    assert "weights are random" in page.locator("#ns-model-1 .ns-note").inner_text()
    first = after(page, lambda: click(page, 0.3, 0.35))
    kernels = page.locator("#ns-model-2 .ns-panel img").nth(1).get_attribute("src")
    second = after(page, lambda: click(page, 0.8, 0.8))
    assert first != second
    assert page.locator("#ns-model-2 .ns-panel img").nth(1).get_attribute("src") != kernels
    assert page.evaluate("[...document.querySelectorAll('.ns-panel img')].every(i => i.naturalWidth > 100 && i.alt)")
    assert after(page, lambda: click(page, 0.5, 0.2)) != second


def test_models_layers_methods_and_samples(open_page: Open) -> None:
    page = open_page()
    after(page, lambda: choose(page, "ns-first", "lit_nano"))
    assert page.locator("#ns-model-1 h3").inner_text() == "lit_nano"
    titles = page.locator("#ns-model-1 figcaption b").all_inner_texts()
    assert "Sampling points" in titles
    choose(page, "ns-second", "none")
    page.wait_for_selector("#ns-model-2 .ns-model", state="detached")
    after(page, lambda: page.locator("#ns-samples button").nth(1).click())
    after(page, lambda: choose(page, "ns-first-layer", "stage 3, block 2"))
    assert "layer 3.2" in page.locator("#ns-model-1 figcaption span").first.inner_text()
    page.get_by_label("Receptive field").uncheck()
    page.wait_for_function("!document.querySelector('#ns-model-1').innerText.includes('Receptive field')")


def test_a_model_chosen_by_keyboard_begins_in_its_middle_layer_again(open_page: Open) -> None:
    page = open_page()
    after(page, lambda: choose(page, "ns-first-layer", "stage 1, block 1"))
    page.locator("#ns-first input").click()
    after(page, lambda: [page.keyboard.press(key) for key in ("ArrowDown", "ArrowDown", "Enter")])
    assert page.locator("#ns-model-1 h3").inner_text() == "lit_nano"
    assert "layer 3.1" in page.locator("#ns-model-1 figcaption span").first.inner_text()
    assert page.locator("#ns-first-layer input").input_value() == "stage 3, block 1"


def test_an_image_of_ones_own_and_what_is_none(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    good, bomb, program = tmp_path / "mine.png", tmp_path / "bomb.png", tmp_path / "tool.jpg"
    Image.effect_mandelbrot((300, 200), (-2, -1, 1, 1), 60).save(good)
    Image.new("1", (20_000, 20_000)).save(bomb)  # 400 million pixels in some kilobytes
    program.write_bytes(b"\x7fELF" + bytes(5000))
    upload = page.locator("#ns-upload input[type=file]")
    after(page, lambda: upload.set_input_files(good))
    kept = page.locator(TILE).first.get_attribute("src")
    for file, words in ((bomb, "40 million are the most"), (program, "it holds no image")):
        page.locator("#ns-upload input[type=file]").set_input_files(file)
        page.wait_for_selector(f"#ns-message .ns-problem:has-text('{words}')", timeout=30_000)
        assert page.locator("#ns-message").inner_text().startswith(file.name)
    assert page.locator(TILE).first.get_attribute("src") == kept
    after(page, lambda: click(page, 0.2, 0.3))
    assert page.locator("#ns-message .ns-problem").count() == 0


def test_the_figure_is_downloaded(open_page: Open) -> None:
    page = open_page()
    after(page, lambda: click(page, 0.4, 0.4))
    with page.expect_download(timeout=30_000) as waiting:
        page.get_by_role("button", name="Download the figure").click()
    download = waiting.value
    assert download.suggested_filename == "nearsight.png"
    with Image.open(io.BytesIO(Path(download.path()).read_bytes())) as figure:
        assert figure.format == "PNG" and figure.width > 800


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_a_phone_shows_it_whole(open_page: Open, scheme: str) -> None:
    page = open_page(390, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    after(page, lambda: click(page, 0.6, 0.6))
    image = page.locator("#ns-image img").bounding_box()
    tile = page.locator(TILE).first.bounding_box()
    assert image["width"] > 320 and tile["width"] > 140 and tile["y"] > image["y"]


def test_an_image_of_a_camera_is_looked_at(open_page: Open) -> None:
    page = open_page(500)
    page.get_by_text("Take a picture").click()
    page.locator("#ns-camera").get_by_text("Click to Access Webcam").click()
    shutter = page.locator("#ns-camera button[aria-label='capture photo']")
    shutter.wait_for(timeout=20_000)
    page.wait_for_function("document.querySelector('#ns-camera video').videoWidth > 0")
    shown = page.locator("#ns-image img").get_attribute("src")
    after(page, shutter.click)
    assert page.locator("#ns-image img").get_attribute("src") != shown
    assert "too large" not in page.locator("#ns-message").inner_text()


def test_a_label_is_corrected_and_two_runs_compared(browser: Any, trained_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="gradio is not installed")
    with running([str(trained_run), "lit_nano"], corrections=tmp_path / "kept") as url:
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.goto(url)
        page.wait_for_selector("#ns-model-1 .ns-panel img", timeout=60_000)
        choose(page, "ns-right-label", "<b>seven")
        page.get_by_role("button", name="Save the label").click()
        page.wait_for_function("document.querySelector('#ns-message').innerText.includes('Saved as <b>seven: 1 in')")
        assert (tmp_path / "kept" / "labels.csv").read_text() == "path,label\nimages/sample-Balloons.png,<b>seven\n"
        choose(page, "ns-second", str(trained_run))
        page.wait_for_function("document.querySelector('#ns-message').innerText.startsWith('Both models predict')")
        choose(page, "ns-first", "lit_nano")  # whose weights are random, so that it has no labels
        page.wait_for_selector("#ns-correct", state="hidden")
        page.close()
