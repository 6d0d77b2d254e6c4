"""Images of every mode and format come out as a person sees them, and bad ones say why."""

import contextlib
import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearsight.data import BadImage
from nearsight.data.image import decode, is_image_name, show_middle


def encode(image: Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def pixels(content: bytes, **options) -> np.ndarray:
    image = decode("it", content, **options)
    assert image.mode == "RGB"
    return np.asarray(image)


GREY = np.array([[0, 100, 255], [7, 80, 200]], dtype=np.uint8)
GREY_RGB = np.repeat(GREY[..., None], 3, axis=2)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF"])
def test_grey_becomes_three_equal_channels(kind: str) -> None:
    assert (pixels(encode(Image.fromarray(GREY), kind)) == GREY_RGB).all()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_one_bit_becomes_black_and_white(kind: str) -> None:
    image = Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert("1")
    assert (pixels(encode(image, kind))[..., 1] == [[0, 255], [255, 0]]).all()


def test_transparency_is_laid_on_white() -> None:
    layer = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [100, 0, 200, 128]]], np.uint8)
    expected = [[[10, 20, 30], [255, 255, 255], [177, 127, 227]]]  # c·a + 255·(1 - a)
    for kind, options in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True, "exact": True})):
        assert np.abs(pixels(encode(Image.fromarray(layer), kind, **options)).astype(int) - expected).max() <= 1
    grey = np.array([[[50, 255], [50, 0], [0, 128]]], np.uint8)
    found = pixels(encode(Image.fromarray(grey, "LA"), "PNG"))[0, :, 0].astype(int)
    assert np.abs(found - [50, 255, 127]).max() <= 1


def palette_image() -> Image.Image:
    image = Image.new("P", (3, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putdata([0, 1, 2])
    return image


def test_palette_colours_are_looked_up() -> None:
    for kind in ("PNG", "GIF", "BMP"):
        assert pixels(encode(palette_image(), kind)).tolist() == [[[255, 0, 0], [0, 255, 0], [0, 0, 255]]]


def test_a_palette_with_transparency_is_laid_on_white() -> None:
    one = pixels(encode(palette_image(), "PNG", transparency=1))
    assert one.tolist() == [[[255, 0, 0], [255, 255, 255], [0, 0, 255]]]
    several = pixels(encode(palette_image(), "PNG", transparency=bytes([255, 0, 128])))
    assert several[0, 1].tolist() == [255, 255, 255]
    assert np.abs(several[0, 2].astype(int) - [127, 127, 255]).max() <= 1
    assert pixels(encode(palette_image(), "GIF", transparency=0))[0, 0].tolist() == [255, 255, 255]


def test_a_transparent_colour_of_an_rgb_png_is_white() -> None:
    image = Image.new("RGB", (2, 1), (9, 8, 7))
    image.putpixel((1, 0), (1, 2, 3))
    assert pixels(encode(image, "PNG", transparency=(1, 2, 3))).tolist() == [[[9, 8, 7], [255, 255, 255]]]


@pytest.mark.parametrize(("kind", "options"), [("TIFF", {}), ("JPEG", {"quality": 100})])
def test_cmyk_ink_takes_light_away(kind: str, options: dict) -> None:
    # Pillow writes CMYK JPEGs as Adobe does, inverted and with Adobe's marker.
    inks = {(0, 0, 0, 0): (255, 255, 255), (255, 0, 0, 0): (0, 255, 255), (0, 0, 255, 0): (255, 255, 0)}
    for ink, colour in {**inks, (0, 0, 0, 255): (0, 0, 0)}.items():
        found = pixels(encode(Image.new("CMYK", (16, 16), ink), kind, **options))[8, 8].astype(int)
        assert np.abs(found - colour).max() <= 3, (ink, found)


SIXTEEN = np.array([[0, 257, 65535], [32896, 25700, 128]], dtype=np.uint16)
SIXTEEN_AS_EIGHT = [[0, 1, 255], [128, 100, 0]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG2000"])
def test_sixteen_bits_are_scaled_not_clipped(kind: str) -> None:
    found = pixels(encode(Image.fromarray(SIXTEEN), kind))[..., 0].astype(int)
    assert np.abs(found - SIXTEEN_AS_EIGHT).max() <= (1 if kind == "JPEG2000" else 0)


def test_big_endian_and_plain_text_formats_of_sixteen_bits() -> None:
    pgm = b"P5\n3 2\n65535\n" + SIXTEEN.astype(">u2").tobytes()
    assert (pixels(pgm)[..., 0] == SIXTEEN_AS_EIGHT).all()
    big = encode(Image.frombytes("I;16B", (3, 2), SIXTEEN.astype(">u2").tobytes()), "TIFF")
    assert (pixels(big)[..., 0] == SIXTEEN_AS_EIGHT).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 100.0, 255.0]], np.float32), [0, 100, 255]),
        (np.array([[-1.0, 0.0, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, np.nan, 1.0]], np.float32), [0, 0, 255]),
        (np.array([[0, 100, 255]], np.int32), [0, 100, 255]),
        (np.array([[0, 25700, 65535]], np.int32), [0, 100, 255]),
        (np.array([[-500, 0, 500]], np.int32), [0, 128, 255]),
        (np.array([[0, 500_000, 1_000_000]], np.int32), [0, 128, 255]),
    ],
)
def test_whole_and_broken_numbers_of_32_bits_are_scaled_by_their_range(values: np.ndarray, expected: list) -> None:
    assert pixels(encode(Image.fromarray(values), "TIFF"))[0, :, 0].tolist() == expected


def corner_marked() -> Image.Image:
    """24 wide, 16 high, with the upper left quarter red and the upper right one blue."""
    image = Image.new("RGB", (24, 16), "white")
    image.paste("red", (0, 0, 12, 8))
    image.paste("blue", (12, 0, 24, 8))
    return image


# What the camera did; so that the stored image has to be undone to look like `corner_marked`.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_undone(orientation: int, kind: str) -> None:
    upright = np.asarray(corner_marked())
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    found = pixels(encode(stored, kind, exif=exif, **options)).astype(int)
    assert found.shape == upright.shape
    assert np.abs(found - upright).max() < 60  # a JPEG is not exact at the edges; red to blue would be 255


def test_damaged_exif_does_not_spoil_the_image() -> None:
    content = encode(corner_marked(), "JPEG", exif=b"Exif\0\0" + b"\xff" * 40)
    assert pixels(content).shape == (16, 24, 3)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_image_of_several_is_taken(kind: str) -> None:
    first, second = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    options = {"WEBP": {"lossless": True}}.get(kind, {})
    content = encode(first, kind, save_all=True, append_images=[second], **options)
    assert pixels(content)[4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_may_be_decoded_smaller_but_not_too_small(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    ramp = np.linspace(0, 255, 640).astype(np.uint8)[None].repeat(480, 0)
    content = encode(Image.fromarray(ramp), "JPEG", exif=exif)
    for enough in (30, 59, 60, 61, 100, 240, 300, 480, 1000):
        image = decode("it", content, enough=enough)
        assert min(image.size) >= min(enough, 480)
        assert image.size[0] / image.size[1] == pytest.approx(640 / 480 if orientation == 1 else 480 / 640)
    assert min(decode("it", content, enough=60).size) == 60
    assert min(decode("it", content).size) == 480


def bomb() -> bytes:
    """A PNG that claims 30,000 × 30,000 pixels in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
BAD = {
    "empty": (b"", "the file is empty"),
    "text": (b"not an image, but a note", "it holds no image, or one in an unknown format"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it holds no image, or one in an unknown format"),
    "bomb": (bomb(), "it claims more than 178 million pixels"),
    "cut jpeg": (encode(PHOTO, "JPEG")[:900], "the file is cut off"),
    "cut png": (encode(PHOTO, "PNG")[:900], "the file is cut off"),
    "cut gif": (encode(PHOTO, "GIF")[:900], "the file is cut off"),
    "jpeg header": (encode(PHOTO, "JPEG")[:20], "it holds no image, or one in an unknown format"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_image_says_why(case: str) -> None:
    content, reason = BAD[case]
    with pytest.raises(BadImage) as caught:
        decode("cat/1.jpg", content)
    assert str(caught.value) == f"cat/1.jpg can't be read as an image: {reason}."


@pytest.mark.filterwarnings("ignore")  # pytest undoes the filter that hides Pillow's remarks
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"])
def test_a_damaged_file_is_read_or_called_bad(kind: str) -> None:
    """Any cut and any changed bytes: never another exception."""
    whole, draw = encode(PHOTO, kind), np.random.default_rng(1)
    for _ in range(150):
        damaged = np.frombuffer(whole, np.uint8).copy()
        for index in draw.integers(0, len(whole), draw.integers(1, 8)):
            damaged[index] = draw.integers(0, 256)
        content = damaged[: draw.integers(1, len(whole))].tobytes() if draw.random() < 0.5 else damaged.tobytes()
        with contextlib.suppress(BadImage):
            assert decode("it", content).mode == "RGB"


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encode(Image.fromarray(GREY), "PNG"))
    assert (np.asarray(decode("a", tmp_path / "a.png")) == GREY_RGB).all()
    with pytest.raises(BadImage, match="there is no such file"):
        decode("b", tmp_path / "b.png")
    with pytest.raises(BadImage, match="it is a folder"):
        decode("c", tmp_path)


def test_images_are_known_by_their_suffix() -> None:
    assert all(map(is_image_name, ["a.JPEG", "b.c.tif", "d.webp", "phone.heic"]))
    assert not any(map(is_image_name, ["Thumbs.db", "a.txt", "jpg", ".DS_Store"]))


def test_no_warning_of_pillow_reaches_the_user(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(encode(Image.new("1", (10_000, 9_000)), "PNG"))  # from 89 million pixels on
    code = f"from nearsight.data.image import decode; print(decode('it', {str(tmp_path / 'large.png')!r}).size)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.stdout, run.stderr) == ("(10000, 9000)\n", "")


def test_the_middle_is_shown_in_any_size_also_where_rounding_leads_out_of_the_image() -> None:
    sizes = [(width, side) for width in range(36, 400) for side in (35, 43, 97) if width - width / side * side < 0]
    assert sizes  # such as 41 pixels, shown as 35
    for width, side in sizes:
        assert show_middle(Image.new("RGB", (width, 500)), (side, side), crop=1.0).shape == (3, side, side)
