"""What comes from outside becomes an image or a sentence."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearsight.app.samples import DRAWN, SAMPLES, sample
from nearsight.app.uploads import KEPT, MOST_BYTES, read_upload


def png_that_claims(width: int, height: int) -> bytes:
    """A small file whose head says that it has so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (png_that_claims(9000, 9000), "claims to have 81 million pixels; 40 million are the most"),
        (png_that_claims(60_000, 60_000), "far more pixels; 40 million are the most"),
        (b"\x7fELF" + bytes(4000), "it holds no image, or one in an unknown format"),
        (b"MZ" + bytes(4000), "it holds no image"),
        (b"#!/bin/sh\nrm -rf /\n", "it holds no image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "it holds no image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage", "it holds no image"),
        (b"", "the file is empty"),
        (png_that_claims(30, 400), "can't be shown"),
        (bytes(MOST_BYTES + 1), "has 12.0 MB; 12 MB are the most"),
    ],
)
def test_what_is_no_image_is_refused_with_a_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "cat.png"
    file.write_bytes(content)
    with pytest.raises(ValueError) as refused:
        read_upload(file)
    assert words in str(refused.value)
    assert str(refused.value).startswith("cat.png") and "\n" not in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


def test_a_image_is_upright_rgb_and_not_larger_than_needed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned to the right
    Image.new("RGB", (3000, 1000), "red").save(tmp_path / "a.jpg", exif=exif)
    image = read_upload(tmp_path / "a.jpg")
    assert image.mode == "RGB" and image.height == KEPT and image.width == pytest.approx(KEPT / 3, abs=2)
    Image.new("LA", (5, 4), (0, 0)).save(tmp_path / "b.png")
    assert read_upload(tmp_path / "b.png").getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("name", DRAWN)
def test_samples_are_images_with_something_on_them(name: str) -> None:
    pixels = np.asarray(sample(name))
    assert pixels.shape == (512, 512, 3) and pixels.std() > 25


def test_photos_of_clothing_come_first() -> None:
    photos = SAMPLES[: len(SAMPLES) - len(DRAWN)]
    assert photos == ("Dress", "Hat", "Jacket", "Sandals")
    assert all(sample(name).mode == "RGB" and min(sample(name).size) >= 192 for name in photos)


def test_an_unknown_sample() -> None:
    with pytest.raises(ValueError, match=r"There is no sample 'Dog'; there are Dress, .*Balloons"):
        sample("Dog")
