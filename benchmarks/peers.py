"""Nearsight beside what users would run instead, each in one command; wants a quiet machine.

    python benchmarks/peers.py prepare      # JPEG folders of clothing.zip; an environment with the peers; once
    python benchmarks/peers.py train        # on 991 JPEGs: about 10 minutes on two cores
    python benchmarks/peers.py predict      # 5,000 JPEGs: about 6 minutes
    python benchmarks/peers.py start        # from a cold start to the first prediction: 2 minutes
    python benchmarks/peers.py eval         # 3,068 images: about 5 minutes

Every way is a process of its own, as a user starts it, and they take turns. Of a training the images in a second are
those of the difference between a longer and a shorter one, so that starting up does not count; the seconds of the
shorter one minus its images are the start. Memory is the largest resident set of the process and its readers. Model
(timm's DeiT-Tiny), batch, image size, augmentation (random resized crop, flip), optimizer, schedule, EMA (Nearsight and
timm) and float32 are the same for all. Results go to benchmarks/results/peers-*.json.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
MODEL = "deit_tiny_patch16_224"
PEERS = ("torch==2.*", "torchvision", "timm", "transformers[torch]", "fastai", "safetensors")


@dataclass(frozen=True)
class Cost:
    """What a process took: seconds by the clock, seconds of all cores, bytes of memory."""

    wall: float
    cpu: float
    memory: int


def run(command: list[str | Path], threads: int) -> Cost:
    """Run a command to its end."""
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    began, before = time.perf_counter(), os.times()
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=variables
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        time.sleep(0.02)
    wall, after = time.perf_counter() - began, os.times()
    if process.returncode:
        assert process.stderr is not None
        raise SystemExit(f"{' '.join(map(str, command))}\n{process.stderr.read().decode()[-2000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(wall, cpu, peak)


def resident(pid: int) -> int:
    """Bytes that a process and its children hold; shared pages count once, by their fraction."""
    total, pending = 0, [pid]
    while pending:
        one = pending.pop()
        try:
            rows = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += next(int(row.split()[1]) for row in rows if row.startswith("Pss:")) * 1024
            pending += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except (OSError, StopIteration, ProcessLookupError):
            continue
    return total


def prepare(given: argparse.Namespace) -> None:
    """Folders of JPEGs and an environment with the peers."""
    archive = zipfile.ZipFile(Path(os.environ["NEARSIGHT_DATA"]) / "clothing.zip")
    names = [name for name in archive.namelist() if name.endswith(".jpg")]
    names = names[:: max(1, len(names) // given.images)] if given.images else names
    for name in names:
        parts = Path(name).parts
        split, label = parts[-3], parts[-2]
        if split in ("train", "val"):
            target = given.work / "classes" / split / label / parts[-1]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
            if split == "val" or sum(map(ord, parts[-1])) % 3 == 0:  # a third to train with, whatever their order
                target = given.work / "few" / split / label / parts[-1]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    if not given.images:
        many = given.work / "many"
        many.mkdir(exist_ok=True)
        for number in range(5000):
            name = names[number % len(names)]
            (many / f"{number:04}-{Path(name).parent.name}.jpg").write_bytes(archive.read(name))
    else:
        (given.work / "many").mkdir(exist_ok=True)
        for number, name in enumerate(names):
            (given.work / "many" / f"{number:04}.jpg").write_bytes(archive.read(name))
    if given.venv and not (given.work / "venv").exists():
        subprocess.run([sys.executable, "-m", "venv", given.work / "venv"], check=True)
        subprocess.run([given.work / "venv/bin/pip", "install", "-q", *PEERS], check=True)


def train(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Images in a second of each loop."""
    data, images = given.work / "few", len(list((given.work / "few" / "train").rglob("*.jpg")))
    images -= images % given.batch  # a last batch that is not full is left out
    common = [
        "--model",
        MODEL,
        "--size",
        given.size,
        "--batch",
        given.batch,
        "--workers",
        1,
        "--threads",
        given.threads,
    ]

    def ours(epochs: int, turn: int) -> list[Any]:
        sets = [
            *("augment.crop=resized", "augment.flip=0.5", "augment.rand_augment=null", "augment.mixup=0"),
            *("augment.cutmix=0", "augment.erase=0", "optimizer.lr=1e-3", "optimizer.weight_decay=0.05"),
            *("loss.smoothing=0.1", "ema=0.999", "precision=float32", f"validate_every={epochs}", "data.test=false"),
            *(f"batch={given.batch}", "data.workers=1", "schedule.warmup_epochs=0"),
        ]
        words = [word for one in sets for word in ("--set", one)]
        out = given.work / f"run-{epochs}-{turn}-{time.time_ns()}"
        return [
            *(sys.executable, "-m", "nearsight", "train", data, "--model", f"timm/{MODEL}", "--weights", "none"),
            *("--img-size", given.size, "--epochs", epochs, "--threads", given.threads, "--cpu", "--out", out, *words),
        ]

    ways: dict[str, Callable[[int, int], list[Any]]] = {"nearsight": ours}
    python = given.work / "venv/bin/python" if (given.work / "venv").exists() else Path(sys.executable)
    for peer in given.peers.split(","):
        ways[peer] = lambda epochs, _, peer=peer: [  # type: ignore[misc]
            *(python, HERE / "peer_loops.py", peer, data, "--epochs", epochs, *common)
        ]
    costs: dict[str, list[tuple[Cost, Cost]]] = {name: [] for name in ways}
    for turn in range(given.rounds):
        for name, command in ways.items():
            costs[name].append((run(command(1, turn), given.threads), run(command(given.epochs, turn), given.threads)))
    rows = []
    for name, pairs in costs.items():
        speed = [(given.epochs - 1) * images / (long.wall - short.wall) for short, long in pairs]
        start = [short.wall - images / value for (short, _), value in zip(pairs, speed, strict=True)]
        memory = max(one.memory for pair in pairs for one in pair)
        rows.append({"way": name, "images_per_second": speed, "seconds_to_start": start, "bytes": memory})
    return rows


def bundle_and_run(given: argparse.Namespace) -> tuple[Path, Path]:
    """A weight file of the model and its bundle, made once; what it predicts does not matter here."""
    weights, bundle = given.work / "model" / "model.safetensors", given.work / "bundle"
    if not weights.is_file():
        import timm
        import torch

        from nearsight.data.transforms import Preprocessing
        from nearsight.runs.predictor import save_trained
        from nearsight.tasks.base import Built

        torch.manual_seed(0)
        options = {"img_size": given.size}
        classes = tuple(sorted(path.name for path in (given.work / "classes" / "train").iterdir()))
        model = timm.create_model(MODEL, num_classes=len(classes), **options).eval()
        weights.parent.mkdir(parents=True, exist_ok=True)
        built = Built(model, MODEL, options, Preprocessing((given.size, given.size)))
        save_trained(built, "classify", classes, weights)
        import nearsight

        nearsight.export(weights, bundle, images=given.work / "many")
    return weights, bundle


def predict(given: argparse.Namespace) -> list[dict[str, Any]]:
    """A folder of JPEGs to a table: Nearsight, its bundle, and a plain script."""
    weights, bundle = bundle_and_run(given)
    many, nearsight = given.work / "many", [sys.executable, "-m", "nearsight", "predict"]
    table = given.work / "table.csv"
    ways = {
        "nearsight": [*nearsight, weights, many, "--csv", table, "--force"],
        "bundle": [*nearsight, bundle, many, "--csv", table, "--force"],
        "plain script": [
            *(sys.executable, HERE / "peer_loops.py", "predict", many, "--model", MODEL, "--size", given.size),
            *("--batch", 64, "--workers", 1, "--threads", given.threads, "--weights", weights),
        ],
    }
    return take_turns(ways, given, len(list(many.glob("*.jpg"))))


def start(given: argparse.Namespace) -> list[dict[str, Any]]:
    """From nothing to the first prediction, beside importing torch and timm alone."""
    weights, bundle = bundle_and_run(given)
    image = next((given.work / "many").glob("*.jpg"))
    nearsight = [sys.executable, "-m", "nearsight", "predict"]
    ways = {
        "import torch, timm": [sys.executable, "-c", "import torch, timm"],
        "nearsight": [*nearsight, weights, image],
        "bundle": [*nearsight, bundle, image],
    }
    return take_turns(ways, given, 1)


def evaluate(given: argparse.Namespace) -> list[dict[str, Any]]:
    """`nearsight eval` on a folder of classes, of the model and of its bundle."""
    weights, bundle = bundle_and_run(given)
    data = given.work / "classes"
    nearsight = [sys.executable, "-m", "nearsight", "eval"]
    ways = {
        "nearsight": [*nearsight, weights, data, "--split", "train", "--out", given.work / "report"],
        "bundle": [*nearsight, bundle, data, "--split", "train", "--out", given.work / "report"],
    }
    return take_turns(ways, given, len(list((data / "train").rglob("*.jpg"))))


def take_turns(ways: dict[str, list[Any]], given: argparse.Namespace, images: int) -> list[dict[str, Any]]:
    """What each way costs, in rounds."""
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for command in ways.values():
        run(command, given.threads)  # files come into the cache
    for _ in range(given.rounds):
        for name, command in ways.items():
            costs[name].append(run(command, given.threads))
    return [
        {
            "way": name,
            "images": images,
            "seconds": [one.wall for one in found],
            "cpu_seconds": [one.cpu for one in found],
            "bytes": max(one.memory for one in found),
        }
        for name, found in costs.items()
    ]


def main() -> None:
    actions = {"prepare": prepare, "train": train, "predict": predict, "start": start, "eval": evaluate}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=actions)
    parser.add_argument("--work", type=Path, default=Path("/tmp/nearsight-peers"), help="folder for data and peers")
    parser.add_argument("--peers", default="timm,transformers,fastai")
    parser.add_argument("--no-venv", dest="venv", action="store_false", help="take peers from this environment")
    parser.add_argument("--images", type=int, help="JPEGs to prepare; all without")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    rows = actions[given.what](given)  # type: ignore[operator]
    if rows is None:
        return
    stream = io.StringIO()
    for row in rows:
        numbers = row.get("images_per_second") or row["seconds"]
        unit = "images/s" if "images_per_second" in row else "s"
        print(f"{row['way']:20} {np.median(numbers):8.2f} {unit}, {row['bytes'] / 1e6:,.0f} MB", file=stream)
    print(stream.getvalue(), end="")
    from nearsight.benchmarking.results import describe_machine

    setting = {
        key: value for key, value in vars(given).items() if key in ("size", "batch", "epochs", "rounds", "threads")
    }
    out = given.out or HERE / "results" / f"peers-{given.what}.json"
    out.write_text(json.dumps({"machine": describe_machine(), "setting": setting, "rows": rows}, indent=1) + "\n")
    print(f"Wrote {out}.")


if __name__ == "__main__":
    main()
