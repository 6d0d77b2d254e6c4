"""Tiny data for every task."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

COLOURS = ("red", "green", "blue")
SHAPES = "shapes?images=8&size=48"  # with boxes, masks and semantic segmentation


def write_table(folder: Path, labels: list[tuple[int, ...]]) -> str:
    """A table of images of 20 x 16 pixels that have these colours: the first 8 to test, then 8 to validate."""
    generator, rows = np.random.default_rng(0), []
    for number, kinds in enumerate(labels):
        pixels = generator.integers(0, 60, (16, 20, 3), dtype=np.uint8)
        pixels[..., list(kinds)] += 120
        Image.fromarray(pixels).save(folder / f"{number}.png")
        split = "test" if number < 8 else "val" if number < 16 else "train"
        rows.append(f"{number}.png,{'|'.join(COLOURS[kind] for kind in kinds)},{split}")
    (folder / "labels.csv").write_text("\n".join(["path,label,split", *rows]) + "\n")
    return str(folder / "labels.csv")


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Data by name: images of one class, of several labels, and scenes of shapes."""
    several = [tuple(kind for kind in range(3) if number >> kind & 1) for number in range(40)]
    return {
        "classes": write_table(tmp_path_factory.mktemp("classes"), [(number % 3,) for number in range(40)]),
        "labels": write_table(tmp_path_factory.mktemp("labels"), several),
        "shapes": SHAPES,
    }
