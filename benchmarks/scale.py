"""The cost of a training step as a model of three numbers, checked with one and two processes; see docs/scale.md.

    python benchmarks/peers.py prepare                     # the JPEG folder, once
    python benchmarks/scale.py                             # wants a quiet machine: about 6 minutes on two cores
    python benchmarks/scale.py --gpus 8,64 --compute 4e-4 --bandwidth 2e10   # and what follows elsewhere

Every process has one thread, so that two of them are two cores. Measured: seconds of the passes of an image and of a
step's constant part (a line through three batch sizes), seconds to read and augment an image, seconds of an all-reduce
of the model's gradients between two processes. Predicted and measured: images in a second of `nearsight train`, from
the difference between a longer and a shorter training. Written to benchmarks/results/scale.json.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from peers import HERE, MODEL, run

from nearsight.benchmarking.results import describe_machine
from nearsight.config.recipe import Augment
from nearsight.data.loader import Draw, TrainImages
from nearsight.data.open import open_any
from nearsight.data.transforms import Augmentation, Preprocessing

SETS = ("augment.crop=resized", "augment.rand_augment=null", "augment.mixup=0", "augment.cutmix=0", "augment.erase=0")


def compute(size: int, batches: tuple[int, ...], rounds: int) -> tuple[float, float, int]:
    """Seconds of an image, seconds of a step without images, and bytes of the gradients."""
    model = timm.create_model(MODEL, num_classes=10, img_size=size).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    medians = []
    for batch in batches:
        images, labels = torch.randn(batch, 3, size, size), torch.zeros(batch, dtype=torch.long)
        seconds = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - began)
        medians.append(float(np.median(seconds[1:])))
    slope, constant = np.polyfit(batches, medians, 1)
    return float(slope), max(0.0, float(constant)), 4 * sum(one.numel() for one in model.parameters())


def loader(data: Path, size: int, images: int) -> float:
    """Seconds to read, decode and augment an image."""
    split = open_any(str(data)).train
    assert split is not None
    views = TrainImages(split, Augmentation(Augment(crop="resized"), Preprocessing((size, size))), seed=0)
    began, count = time.perf_counter(), min(images, len(split))
    for index in range(count):
        views[Draw(0, index, 0)]
    return (time.perf_counter() - began) / count


def exchange(rank: int, numbers: int, rounds: int, port: int, found: Any) -> None:
    """Seconds of an all-reduce between two processes."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    values, seconds = torch.ones(numbers), []
    for _ in range(rounds + 1):
        torch.distributed.barrier()
        began = time.perf_counter()
        torch.distributed.all_reduce(values)
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        found.value = float(np.median(seconds[1:]))
    torch.distributed.destroy_process_group()


def all_reduce(numbers: int, rounds: int) -> float:
    """Of so many float32 numbers between two processes on this machine."""
    context = multiprocessing.get_context("spawn")
    found, port = context.Value("d", 0.0), 29000 + os.getpid() % 1000
    ranks = [context.Process(target=exchange, args=(rank, numbers, rounds, port, found)) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    return found.value


def trained(given: argparse.Namespace, processes: int) -> float:
    """Images in a second of `nearsight train`."""
    data = given.work / "few"
    images = len(list((data / "train").rglob("*.jpg"))) // given.batch * given.batch
    walls = []
    for epochs in (1, given.epochs):
        launch = [sys.executable, "-m", "nearsight"]
        if processes > 1:
            launch = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                str(processes),
                "-m",
                "nearsight",
            ]
        sets = [*SETS, f"batch={given.batch}", "precision=float32", "data.workers=0", f"validate_every={epochs}"]
        words = [word for one in (*sets, "data.test=false") for word in ("--set", one)]
        out = given.work / f"scale-{processes}-{epochs}-{time.time_ns()}"
        common = ["train", data, "--model", f"timm/{MODEL}", "--weights", "none", "--img-size", given.size, "--cpu"]
        walls.append(run([*launch, *common, "--epochs", epochs, "--threads", 1, "--out", out, *words], 1).wall)
    return (given.epochs - 1) * images / (walls[1] - walls[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("/tmp/nearsight-peers"), help="as `peers.py prepare` made it")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--gpus", default="", help="numbers of GPUs to predict for, such as 8,64")
    parser.add_argument("--compute", type=float, default=4e-4, help="seconds of an image's passes on such a GPU")
    parser.add_argument("--bandwidth", type=float, default=2e10, help="bytes in a second between GPUs")
    parser.add_argument("--cores", type=int, default=12, help="cores that read images for each GPU")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scale.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    of_image, constant, gradient = compute(given.size, (given.batch // 4, given.batch // 2, given.batch), given.rounds)
    read = loader(given.work / "few", given.size, 16 * given.rounds)
    exchanged = all_reduce(gradient // 4, given.rounds)
    rows = []
    for processes in (1, 2):
        images = given.batch / processes
        step = (
            images * (of_image + read) + constant + (exchanged if processes > 1 else 0)
        )  # no readers: one after the other
        predicted, measured = given.batch / step, trained(given, processes)
        rows.append({"processes": processes, "predicted": predicted, "measured": measured})
        print(f"{processes} process(es): {predicted:.1f} images/s predicted, {measured:.1f} measured")
    elsewhere = []
    for count in map(int, filter(None, given.gpus.split(","))):
        ring = gradient * 2 * (count - 1) / count / given.bandwidth
        for batch in (64, 256):
            work, reading = batch * given.compute, batch * read / given.cores
            seconds = max(reading, max(work, work / 3 + ring))  # the exchange hides behind the backward pass
            limit = "loader" if seconds == reading else "compute" if seconds == work else "exchange"
            speed = count * batch / seconds
            elsewhere.append({"gpus": count, "batch_each": batch, "images_per_second": speed, "limit": limit})
            hours = [epochs * images / speed / 3600 for epochs, images in ((300, 1_281_167), (90, 14_197_122))]
            told = f"{count} GPUs of {batch} images: {speed:,.0f} images/s, limit: {limit}"
            print(f"{told}; ImageNet-1k in {hours[0]:.1f} h, -22k in {hours[1]:.1f} h")
    about = {
        "compute": of_image,
        "constant": constant,
        "loader": read,
        "all_reduce": exchanged,
        "gradient_bytes": gradient,
    }
    record = {"machine": describe_machine(), "seconds": about, "checked": rows, "elsewhere": elsewhere}
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"Wrote {given.out}.")


if __name__ == "__main__":
    main()
