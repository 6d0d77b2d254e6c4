"""Pictures side by side under their titles, such as truth and prediction."""

from collections.abc import Sequence

from PIL import Image, ImageDraw

from .lettering import INK, PAGE, fit_text, font_for, text_size

GAP = 12
SIZE = 16


def side_by_side(panels: Sequence[tuple[str, Image.Image]], height: int | None = None) -> Image.Image:
    """The pictures in a row, all of one height, each with its title above.

    Args:
        panels: Titles and pictures.
        height: Of the pictures in pixels; None takes that of the tallest, but not more than 800.

    Example:
        >>> side_by_side([("truth", Image.new("RGB", (400, 300))), ("prediction", Image.new("RGB", (400, 300)))]).size
        (836, 349)
    """
    if not panels:
        raise ValueError("There are no pictures to put side by side.")
    tall = min(800, max(picture.height for _, picture in panels)) if height is None else height
    shown = [
        picture.resize((max(1, round(picture.width * tall / picture.height)), tall), Image.Resampling.LANCZOS)
        for _, picture in panels
    ]
    head = text_size("Ag", SIZE, bold=True)[1] + GAP
    width = sum(picture.width for picture in shown) + GAP * (len(shown) + 1)
    page = Image.new("RGB", (width, tall + head + GAP + GAP // 2), PAGE)
    draw = ImageDraw.Draw(page)
    left = GAP
    for (title, _), picture in zip(panels, shown, strict=True):
        text = fit_text(title, picture.width, SIZE, bold=True)
        draw.text((left, GAP), text, font=font_for(text, SIZE, bold=True), fill=INK)
        page.paste(picture, (left, head + GAP // 2))
        left += picture.width + GAP
    return page
