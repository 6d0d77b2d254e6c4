"""What a training step costs: the data's fraction of it, and a model of ours beside timm's.

Both are measured in the real loop (`nearsight.training.loop.take_step`), in one run, in rounds that take turns:

    python benchmarks/training_step.py --data DIR      # where cifar10_subset.npz and photos30.zip are; 15 minutes
    python benchmarks/training_step.py --data DIR --only LIFE LocalViT LocalViT-PVT       # 4 minutes

`pipeline`: the loop fed by the loader against the same loop fed one constant batch, for images of 32 pixels
(`deit_nano`) and JPEGs at 224 pixels (`deit_tiny`). The others: a model against the plain one that it changes, both fed
one constant batch. Results go to benchmarks/results/training_step.json, each with its machine; those that are not
measured this time stay.
"""

import argparse
import io
import itertools
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nearsight.benchmarking.results import describe_machine
from nearsight.config.files import load_recipe
from nearsight.data.loader import Batch
from nearsight.runs.run import Run
from nearsight.training.loop import take_step
from nearsight.training.session import Limits, Session, make_accelerator, open_session, prepare, training_batches
from nearsight.training.signals import StopFlag

SMALL: dict[str, object] = {"model.name": "deit_nano", "batch": 128}
LARGE: dict[str, object] = {"model.name": "deit_tiny", "batch": 16, "model.img_size": 224}
STRONG = {"augment.rand_augment": "rand-m9-mstd0.5-inc1", "augment.erase": 0.25, "augment.mixup": 0.8}
PIPELINES: dict[str, tuple[int, dict[str, object]]] = {
    "pipeline, 32 pixels": (32, SMALL),
    "pipeline, 32 pixels, strong augmentation": (32, {**SMALL, **STRONG}),
    "pipeline, 224-pixel JPEGs": (224, LARGE),
    "pipeline, 224-pixel JPEGs, strong augmentation": (224, {**LARGE, **STRONG}),
}
PAIRS = {
    "LIFE": ("deit_tiny_life", "timm/deit_tiny_patch16_224"),
    "LocalViT": ("localvit_tiny", "timm/deit_tiny_patch16_224"),
    "LocalViT-PVT": ("localvit_pvt", "pvt_tiny"),
}


def open_loop(source: str, settings: dict[str, object]) -> tuple[Session, Iterator[Batch]]:
    """A session that never ends, and its loader."""
    recipe = load_recipe("small-data", {"epochs": 30, **settings})
    run = Run(tempfile.mkdtemp())
    prepared = prepare(source, recipe)
    run.begin(prepared.recipe, prepared.record)
    session = open_session(run, prepared, make_accelerator(run, prepared.recipe, (), cpu=False), Limits())
    return session, iter(training_batches(session, prepared.train))


def rounds(loops: dict[str, tuple[Session, Iterator[Batch]]], count: int, steps: int) -> dict[str, list[float]]:
    """Seconds of a step of each loop, in rounds that take turns; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(count + 1):
        for name, (session, batches) in loops.items():
            start = time.perf_counter()
            for _ in range(steps):
                take_step(session, batches, StopFlag())
                session.progress.step += 1
            if number:
                times[name].append((time.perf_counter() - start) / steps)
    return times


def ratio(times: dict[str, list[float]], top: str, bottom: str) -> dict[str, float]:
    """Median over the rounds of one time by the other, with the middle half."""
    ratios = np.array(times[top]) / np.array(times[bottom])
    low, median, high = np.percentile(ratios, [25, 50, 75])
    return {"ratio": median, "from": low, "to": high}


def pipeline(source: str, settings: dict[str, object], count: int, steps: int) -> dict[str, object]:
    """The loop fed by the loader, by the loop fed one constant batch."""
    session, batches = open_loop(source, settings)
    constant = itertools.repeat(next(batches))
    times = rounds({"loader": (session, batches), "constant": (session, constant)}, count, steps)
    return report(settings, times, "loader", "constant")


def beside(model: str, host: str, source: str, count: int, steps: int) -> dict[str, object]:
    """A step of a model by one of its host."""
    settings: dict[str, object] = {"batch": 16, "model.img_size": 224}
    loops = {}
    for name in (model, host):
        session, batches = open_loop(source, {**settings, "model.name": name})
        loops[name] = (session, itertools.repeat(next(batches)))
    return report(settings, rounds(loops, count, steps), *loops)


def report(settings: dict[str, object], times: dict[str, list[float]], top: str, bottom: str) -> dict[str, object]:
    """Settings, seconds of each round, and their ratio."""
    return {"settings": settings, "seconds": times, f"{top} by {bottom}": ratio(times, top, bottom)}


def write_photos(archive: Path, folder: Path, copies: int) -> None:
    """A folder of JPEGs of 320 pixels in two classes."""
    with zipfile.ZipFile(archive) as zipped:
        photos = [Image.open(io.BytesIO(zipped.read(name))).convert("RGB") for name in sorted(zipped.namelist())]
    for number, (copy, photo) in enumerate(itertools.product(range(copies), photos)):
        target = folder / ("even", "odd")[number % 2]
        target.mkdir(parents=True, exist_ok=True)
        photo.save(target / f"{copy}-{number}.jpg", quality=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("NEARSIGHT_DATA"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=[*PIPELINES, *PAIRS], metavar="NAME")
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("give --data, or set NEARSIGHT_DATA")
    photos = Path(tempfile.mkdtemp()) / "photos"
    write_photos(arguments.data / "photos30.zip", photos, copies=20)
    sources = {32: str(arguments.data / "cifar10_subset.npz"), 224: str(photos)}
    target = Path(__file__).parent / "results" / "training_step.json"
    results = json.loads(target.read_text()) if target.is_file() else {}
    for name in arguments.only or [*PIPELINES, *PAIRS]:
        if name in PAIRS:
            found = beside(*PAIRS[name], sources[224], arguments.rounds, 3)
        else:
            side, settings = PIPELINES[name]
            found = pipeline(sources[side], settings, arguments.rounds, 4 if side == 32 else 3)
        results[name] = {**found, "machine": {**describe_machine(), "threads": torch.get_num_threads()}}
        target.write_text(json.dumps(results, indent=1) + "\n")
        for key, value in found.items():
            if " by " in key:
                print(f"{name}: {key} {value['ratio']:.3f} ({value['from']:.3f} to {value['to']:.3f})", flush=True)


if __name__ == "__main__":
    main()
