"""What are local parts worth to a pretrained model with few images? Train, compare, and write docs/results/retrofit.md.

    python benchmarks/retrofit.py train --data DIR --out DIR   # hours; stopped, it goes on with the same command
    python benchmarks/retrofit.py page --out DIR

A small ViT of timm learns the first five classes of cifar10_subset.npz. Then few images of the other five fine-tune it:
as it is, localized with `preserve`, and localized without, on the same images with the same seeds.
"""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from evidence import model_table, train_or_page

from nearsight.atomic import write_whole
from nearsight.comparison.results import Comparison, read_results

PAGES = Path(__file__).parent.parent / "docs" / "results"
DATA = "cifar10_subset.npz"
BEFORE, AFTER = "first-five.npz", "other-five.npz"
HOST = "vit_tiny_patch16_224"
SMALL = "{patch_size: 4, embed_dim: 96, depth: 6, num_heads: 3}"  # the size of deit_nano
PRETRAIN = [
    *("train", BEFORE, "--model", f"timm/{HOST}", "--set", f"model.options={SMALL}", "--img-size", "32"),
    *("--epochs", "15", "--set", "batch=64", "--out", "first-five"),
]
PARTS = "ffn=localvit:qkv=life"
MODELS = [
    f"plain={HOST}:weights=first-five",
    f"preserved={HOST}:weights=first-five:{PARTS}",
    f"low_layers={HOST}:weights=first-five:{PARTS}:layers=low",
    f"exact={HOST}:weights=first-five:{PARTS}:preserve=false",
]
IMAGES = {100: 40, 400: 25, 1600: 10}  # of the other classes, and epochs


def comparison(images: int) -> list[str]:
    """What follows `nearsight` on the command line."""
    return [
        *("compare", AFTER, "--models", ",".join(MODELS), "--baseline", "plain", "--recipe", "retrofit"),
        *("--seeds", "3", "--limit", str(images), "--epochs", str(IMAGES[images])),
        *("--set", "batch=16", "--out", f"images-{images}"),
    ]


def split_classes(source: Path, out: Path) -> None:
    """Write the images of the first five classes, and those of the others."""
    held = np.load(source, allow_pickle=False)
    for name, first in ((BEFORE, 0), (AFTER, 5)):
        if (out / name).exists():
            continue
        arrays = {"classes": held["classes"][first : first + 5]}
        for split in ("train", "test"):
            labels = held[f"y_{split}"].astype(np.int64) - first
            mine = (labels >= 0) & (labels < 5)
            arrays |= {f"x_{split}": held[f"x_{split}"][mine], f"y_{split}": labels[mine]}
        part = out / f".{name}"
        np.savez(part, **arrays)
        part.replace(out / name)


def train(data: Path, out: Path) -> None:
    """Pretrain, and make the comparisons; what is done already is not done again."""
    out.mkdir(parents=True, exist_ok=True)
    split_classes(data / DATA, out)
    for arguments in (PRETRAIN, *map(comparison, IMAGES)):
        subprocess.run([sys.executable, "-m", "nearsight", *arguments], cwd=out, check=True)


def page(out: Path) -> None:
    """Write the page and the results."""
    found = {images: read_results(out / f"images-{images}") for images in IMAGES if (out / f"images-{images}").is_dir()}
    for images, results in found.items():
        lean = results.model_copy(update={"disagreements": []})  # these hold images of the data
        write_whole(PAGES / f"retrofit-{images}.json", (lean.model_dump_json(indent=1) + "\n").encode())
    text = (PAGES / "retrofit.head.md").read_text() + "\n".join(body(found)) + "\n"
    write_whole(PAGES / "retrofit.md", text.encode())


def body(found: dict[int, Comparison]) -> Iterator[str]:
    """The lines of the page behind its head."""
    yield f"\n```sh\nnearsight {shlex.join(PRETRAIN)}\n```"
    for images, results in found.items():
        yield f"\n## {images:,} images of the other classes, {IMAGES[images]} epochs\n"
        yield f"```sh\nnearsight {shlex.join(comparison(images))}\n```\n"
        yield from model_table(results)


if __name__ == "__main__":
    train_or_page(__doc__, train, page)
