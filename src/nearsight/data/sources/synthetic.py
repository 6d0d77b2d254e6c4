"""Small images of shapes on uneven ground, made here.

Every image follows from the seed and its number. Shapes differ in size, rotation, colour and texture, hide parts of
each other and are cut off at the border; the ground has gradients, clouds, strokes and noise. Only the outline tells
the class, and a small model learns it in minutes.
"""

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...arguments import checked
from ...atomic import claimed_part
from ...console import tracked
from ...plots.overlays import BACKGROUND
from ..annotations import AnnotationIssues, DenseSplit, MapValues, rarest_labels
from ..formats import as_text, index_png
from ..instances import Instances, Rle, encode_masks
from ..samples import Data

CLASSES = ("disc", "square", "triangle", "star", "ring", "cross")
OFTEN = (0.22, 0.20, 0.18, 0.15, 0.13, 0.12)  # how often each is drawn
MOST = 6  # shapes in an image
EMPTY = 0.04  # fraction of images without any
RADII = (0.1, 0.24)  # of a shape, as a fraction of the image's side
VISIBLE = 0.75  # fraction of a shape that others must leave uncovered
SMALLEST = 12  # pixels of a shape
TRIES = 20  # to find room for a shape
FINE = 4  # pixels that a pixel is drawn with, in each direction

Points = NDArray[np.float64]
Pixels = NDArray[np.float32]


def circle(radius: float) -> Points:
    """A circle's outline `[48, 2]`."""
    angles = np.linspace(0, 2 * math.pi, 48, endpoint=False)
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def corners(count: int, *radii: float) -> Points:
    """Corners at equal angles, their distances taken in turn `[count, 2]`."""
    angles = np.arange(count) * (2 * math.pi / count) - math.pi / 2
    lengths = np.resize(radii, count)
    return np.stack([lengths * np.cos(angles), lengths * np.sin(angles)], axis=1)


ARM = 0.34  # half the width of a cross's arms
OUTLINES: dict[str, tuple[Points, ...]] = {  # the outline, and a hole
    "disc": (circle(1.0),),
    "square": (np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * 0.82,),
    "triangle": (corners(3, 1.1),),
    "star": (corners(10, 1.15, 0.48),),
    "ring": (circle(1.0), circle(0.55)),
    "cross": (
        np.array(
            [
                *([-ARM, -1], [ARM, -1], [ARM, -ARM], [1, -ARM], [1, ARM], [ARM, ARM]),
                *([ARM, 1], [-ARM, 1], [-ARM, ARM], [-1, ARM], [-1, -ARM], [-ARM, -ARM]),
            ]
        ),
    ),
}


@dataclass(frozen=True)
class DrawingPlan:
    """What is decided of an image before it is drawn: height and width, and the classes of its shapes."""

    size: tuple[int, int]
    kinds: NDArray[np.int64]


@dataclass(frozen=True)
class Drawing:
    """An image of shapes.

    Attributes:
        pixels: Bytes `[H, W, 3]`.
        labels: Classes of the shapes `[n]`.
        rles: What is visible of each, as RLE.
        boxes: Around what is visible `[n, 4]`.
        area: Visible pixels `[n]`.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    rles: list[Rle]
    boxes: NDArray[np.float32]
    area: NDArray[np.float32]


def plan_image(seed: int, number: int, size: int) -> DrawingPlan:
    """Decide the format and the classes of an image."""
    random = np.random.default_rng([seed, number])
    short = max(16, size * 3 // 4)
    format = ((size, size), (short, size), (size, short))[random.choice(3, p=(0.5, 0.35, 0.15))]
    count = 0 if random.random() < EMPTY else int(random.integers(1, MOST + 1))
    return DrawingPlan(format, random.choice(len(CLASSES), size=count, p=OFTEN).astype(np.int64))


def draw_image(seed: int, number: int, size: int) -> Drawing:
    """Draw an image.

    Args:
        seed: Another seed gives other images.
        number: Which image.
        size: Pixels of the longer side.

    Example:
        >>> drawing = draw_image(0, 1, 64)
        >>> drawing.pixels.shape, len(drawing.labels) == len(drawing.boxes)
        ((64, 48, 3), True)
    """
    plan = plan_image(seed, number, size)
    random = np.random.default_rng([seed, number, 1])
    canvas = draw_ground(random, plan.size)
    labels: list[int] = []
    owner = np.full(plan.size, -1)  # number of the shape that is seen at each pixel
    totals: list[int] = []
    for kind in plan.kinds:
        cover = draw_shape(random, CLASSES[kind], plan.size, owner, totals)
        if cover is None:
            continue
        surroundings = canvas.mean(axis=(0, 1))
        first, second = away(random, surroundings), away(random, surroundings)
        pattern = PATTERNS[random.choice(len(PATTERNS), p=(0.5, 0.25, 0.1, 0.1, 0.05))]
        strength = random.uniform(0.2, 0.7)
        texture = first + strength * pattern(random, plan.size)[..., None] * (second - first)
        canvas += cover[..., None] * (texture - canvas)
        owner[cover >= 0.5] = len(labels)
        totals.append(int((cover >= 0.5).sum()))
        labels.append(int(kind))
    noise = random.normal(0, random.uniform(1, 8), (*plan.size, 3))
    pixels = (canvas + noise).clip(0, 255).astype(np.uint8)
    masks = owner == np.arange(len(labels))[:, None, None]
    return Drawing(
        pixels,
        np.array(labels, dtype=np.int64),
        encode_masks(masks),
        boxes_around(masks),
        masks.sum(axis=(1, 2)).astype(np.float32),
    )


def draw_shape(
    random: np.random.Generator, name: str, size: tuple[int, int], owner: NDArray[np.int64], totals: list[int]
) -> Pixels | None:
    """How much of each pixel a new shape covers `[H, W]`, where it hides no other; None if there is no room."""
    height, width = size
    for _ in range(TRIES):
        radius = math.exp(random.uniform(math.log(RADII[0]), math.log(RADII[1]))) * max(size)
        centre = random.uniform(0.7 * radius, width - 0.7 * radius), random.uniform(0.7 * radius, height - 0.7 * radius)
        cover = rasterise(OUTLINES[name], random_affine(random, radius), centre, size)
        mask = cover >= 0.5
        left = np.bincount(owner[~mask] + 1, minlength=len(totals) + 1)[1:]  # what would still be seen of the others
        if mask.sum() >= SMALLEST and (left >= VISIBLE * np.array(totals)).all():
            return cover
    return None


def random_affine(random: np.random.Generator, radius: float) -> Points:
    """A matrix `[2, 2]` that rotates, stretches a little and enlarges."""
    angle, stretch = random.uniform(0, 2 * math.pi), math.exp(random.uniform(-0.2, 0.2))
    across, lean = random.uniform(0, math.pi), np.diag([stretch, 1 / stretch])
    rotate = [np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]) for a in (angle, across)]
    return radius * rotate[1] @ lean @ rotate[1].T @ rotate[0]


def rasterise(
    outlines: tuple[Points, ...], matrix: Points, centre: tuple[float, float], size: tuple[int, int]
) -> Pixels:
    """How much of each pixel an outline covers `[H, W]`, without its hole."""
    placed = [points @ matrix.T + centre for points in outlines]
    left, top = np.maximum(0, np.floor(placed[0].min(axis=0)).astype(int) - 1)
    right, bottom = np.minimum(size[::-1], np.ceil(placed[0].max(axis=0)).astype(int) + 2)
    fine = Image.new("L", (int(right - left) * FINE, int(bottom - top) * FINE))  # only the part that it may cover
    draw = ImageDraw.Draw(fine)
    for points, ink in zip(placed, (255, 0), strict=False):
        draw.polygon([(float(x), float(y)) for x, y in (points - (left, top)) * FINE], fill=ink)
    cover = np.zeros(size, dtype=np.float32)
    cover[top:bottom, left:right] = np.asarray(fine.reduce(FINE), dtype=np.float32) / np.float32(255)
    return cover


def draw_ground(random: np.random.Generator, size: tuple[int, int]) -> Pixels:
    """The ground `[H, W, 3]`: a gradient, clouds and strokes."""
    first, second = random.uniform(40, 215, (2, 3)).astype(np.float32)
    fraction = slope(random, size)[..., None]
    ground = first + fraction * (second - first) * 0.6
    for cells in (3, 9):
        ground += clouds(random, size, cells) * random.uniform(2, 10)
    image = Image.fromarray(ground.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(random.integers(0, 6)):  # strokes, which are no shapes
        start = random.uniform(0, 1, 2) * size[::-1]
        stop = start + random.normal(0, 0.2, 2) * max(size)
        colour = tuple(int(value) for value in random.integers(0, 256, 3))
        draw.line([*start.tolist(), *stop.tolist()], fill=colour, width=int(random.integers(1, 3)))
    return np.asarray(image, dtype=np.float32).copy()


def away(random: np.random.Generator, avoid: Pixels) -> Pixels:
    """A random colour that is not near another."""
    colours = random.uniform(0, 255, (8, 3)).astype(np.float32)
    distances = np.linalg.norm(colours - avoid, axis=1)
    far = np.flatnonzero(distances >= 120)
    return colours[far[0] if len(far) else distances.argmax()]


def plain(random: np.random.Generator, size: tuple[int, int]) -> Pixels:
    """No pattern `[H, W]`."""
    return np.zeros(size, dtype=np.float32)


def slope(random: np.random.Generator, size: tuple[int, int]) -> Pixels:
    """A rise from 0 to 1 in some direction `[H, W]`."""
    phase = direction(random, size)
    return (phase - phase.min()) / max(float(np.ptp(phase)), 1e-6)


def stripes(random: np.random.Generator, size: tuple[int, int]) -> Pixels:
    """Stripes in some direction `[H, W]`."""
    return (np.sin(direction(random, size) * (2 * math.pi / random.uniform(4, 10))) > 0).astype(np.float32)


def checks(random: np.random.Generator, size: tuple[int, int]) -> Pixels:
    """A turned chessboard `[H, W]`."""
    return np.abs(stripes(random, size) - stripes(random, size))


def spots(random: np.random.Generator, size: tuple[int, int]) -> Pixels:
    """Speckles `[H, W]`."""
    return (clouds(random, size, max(size) // 4)[..., 0] > 0.5).astype(np.float32)


PATTERNS: tuple[Callable[[np.random.Generator, tuple[int, int]], Pixels], ...] = (plain, slope, stripes, checks, spots)


def direction(random: np.random.Generator, size: tuple[int, int]) -> Pixels:
    """How far each pixel lies in a random direction `[H, W]`."""
    angle = random.uniform(0, 2 * math.pi)
    rows, columns = np.arange(size[0], dtype=np.float32)[:, None], np.arange(size[1], dtype=np.float32)
    return rows * np.float32(math.sin(angle)) + columns * np.float32(math.cos(angle))


def clouds(random: np.random.Generator, size: tuple[int, int], cells: int) -> Pixels:
    """Soft noise of about unit strength `[H, W, 3]`, with so many clouds across."""
    small = random.normal(0, 48, (cells, cells, 3)).clip(-127, 127) + 128
    large = Image.fromarray(small.astype(np.uint8)).resize(size[::-1], Image.Resampling.BICUBIC)
    return (np.asarray(large, dtype=np.float32) - 128) / np.float32(48)


def boxes_around(masks: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Boxes `[n, 4]` around masks `[n, H, W]`, none of them empty.

    Example:
        >>> masks = np.zeros((1, 5, 5), dtype=bool)
        >>> masks[0, 1:3, 2:5] = True
        >>> boxes_around(masks).tolist()
        [[2.0, 1.0, 5.0, 3.0]]
    """
    boxes = np.zeros((len(masks), 4), dtype=np.float32)
    for index, mask in enumerate(masks):
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        boxes[index] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return boxes


IMAGES, SIZE, SEED = 1200, 128, 0
MOST_IMAGES = 1_000_000
FIRST = {"train": 0, "val": 10**7, "test": 2 * 10**7}  # number of the first image of each split


class Shapes(DenseSplit):
    """A split of images that are drawn when they are read, and then remembered.

    Args:
        split: Name of the split.
        images: How many images it has.
        size: Pixels of their longer side.
        seed: Another seed gives other images.
        values: Of maps, if these are to be learnt; None for the shapes as instances.
    """

    has_masks = True

    def __init__(self, split: str, images: int, size: int, seed: int, values: MapValues | None = None):
        self.split, self.side, self.seed, self.issues = split, size, seed, AnnotationIssues()
        self.learn(values)
        kinds = [plan_image(seed, FIRST[split] + number, size).kinds for number in range(images)]
        starts = np.cumsum([0, *map(len, kinds)])
        self.labels = rarest_labels(starts, np.concatenate([*kinds, np.zeros(0, dtype=np.int64)]), len(CLASSES))
        self._made: dict[int, Drawing] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def drawing(self, index: int) -> Drawing:
        """The image with all that is known of it."""
        if index not in self._made:
            self._made[index] = draw_image(self.seed, FIRST[self.split] + index, self.side)
        return self._made[index]

    def name(self, index: int) -> str:
        return f"{self.split}/{index:05d}.png"

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return Image.fromarray(self.drawing(index).pixels)

    def content(self, index: int) -> bytes:
        return self.drawing(index).pixels.tobytes()

    def size(self, index: int) -> tuple[int, int]:
        height, width, _ = self.drawing(index).pixels.shape
        return height, width

    def annotation(self, index: int, size: tuple[int, int] | None = None) -> Instances | NDArray[np.uint8]:
        drawn = self.drawing(index)
        crowd = np.zeros(len(drawn.labels), dtype=bool)
        found = Instances(
            self.size(index), drawn.boxes.copy(), drawn.labels.copy(), crowd, drawn.area.copy(), list(drawn.rles)
        )
        return found if self.values is None else found.paint(*self.values)


def open_shapes(
    task: str, images: int = IMAGES, size: int = SIZE, seed: int = SEED, background: bool = True, source: str = "shapes"
) -> Data:
    """Training images, an eighth as many to validate with, and a quarter to test with.

    Args:
        task: `detect` or `segment`.
        images: Training images.
        size: Pixels of their longer side.
        seed: Another seed gives other images.
        background: For `segment`, whether the ground is a class.
        source: What the user named.
    """
    if not 4 <= images <= MOST_IMAGES or not 32 <= size <= 4096:
        raise ValueError(
            f"Shapes come in 4 to {MOST_IMAGES:,} images of 32 to 4096 pixels; asked for: {images} of {size}."
        )
    counts = {"train": images, "val": max(images // 8, 1), "test": images // 4}
    values = MapValues.for_task(task, len(CLASSES), background)
    splits = {split: Shapes(split, count, size, seed, values) for split, count in counts.items()}
    classes = (BACKGROUND, *CLASSES) if values is not None and background else CLASSES
    return Data(source, "shapes", classes, **splits)


@checked
def make_shapes(
    out: str | os.PathLike[str], *, images: int = IMAGES, size: int = SIZE, seed: int = SEED
) -> dict[str, int]:
    """Write images of shapes that open for both dense tasks: `annotations/` has the instances, `masks/` the maps.

    Args:
        out: Folder to write; it must not exist yet, or be empty.
        images: Training images; an eighth as many are written for validation, a quarter for the test.
        size: Pixels of their longer side.
        seed: Another seed gives other images.

    Returns:
        Images of each split.

    Raises:
        ValueError: The folder holds something, or there is no such data set.

    Example:
        >>> import nearsight, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> make_shapes(folder, images=8, size=32)
        {'train': 8, 'val': 1, 'test': 2}
        >>> nearsight.open_data(folder).classes[:2]
        ('disc', 'square')
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder; give another one.")
    data = open_shapes("detect", images, size, seed)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with claimed_part(folder, folder=True) as part:
        for name, split in data.splits().items():
            assert isinstance(split, Shapes)
            write_split(part, name, split)
        (part / "classes.txt").write_text("".join(f"{title}\n" for title in (BACKGROUND, *CLASSES)), encoding="utf-8")
        if folder.exists():
            folder.rmdir()
        part.rename(folder)
    return {name: len(split) for name, split in data.splits().items()}


def write_split(folder: Path, name: str, split: Shapes) -> None:
    """Write the images of a split, their masks and their annotations."""
    images, masks = folder / "images" / name, folder / "masks" / name
    for path in (images, masks, folder / "annotations"):
        path.mkdir(parents=True, exist_ok=True)
    values = MapValues.of(len(CLASSES), background=True)
    entries: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in tracked(range(len(split)), f"Drawing {len(split):,} images for {name}"):
        file = f"{index:05d}.png"
        split.read(index).save(images / file)
        found = split.annotation(index)
        assert isinstance(found, Instances)
        (masks / file).write_bytes(index_png(found.paint(*values), (BACKGROUND, *CLASSES)))
        height, width = found.size
        entries.append({"id": index + 1, "file_name": f"images/{name}/{file}", "height": height, "width": width})
        annotations += coco_entries(found, index + 1, len(annotations) + 1)
    categories = [{"id": number + 1, "name": title} for number, title in enumerate(CLASSES)]
    content = {"images": entries, "annotations": annotations, "categories": categories}
    (folder / "annotations" / f"instances_{name}.json").write_text(json.dumps(content), encoding="utf-8")


def coco_entries(found: Instances, image: int, first: int) -> list[dict[str, Any]]:
    """The instances of an image as COCO's files have them."""
    entries = []
    for index, rle in enumerate(found.rles()):
        left, top, right, bottom = found.boxes[index].tolist()
        entries.append(
            {
                "id": first + index,
                "image_id": image,
                "category_id": int(found.labels[index]) + 1,
                "bbox": [left, top, right - left, bottom - top],
                "area": float(found.area[index]),
                "iscrowd": 0,
                "segmentation": {"size": list(rle["size"]), "counts": as_text(rle["counts"])},
            }
        )
    return entries
