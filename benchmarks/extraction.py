"""How fast frozen features are extracted, by the bare forward pass of the same model: what reading images adds.

Both are measured in turns, in one run: `extract_features` over photos at 224 pixels (decoded beside the forward pass,
written to the disk), and a plain loop over batches of the same size that are in memory already, in the same precision.

    python benchmarks/extraction.py --data DIR --weights FILE     # DIR has clothing.zip; FILE are weights of DeiT-Tiny

Results go to benchmarks/results/extraction.json. Goal: at least 0.9 of the speed of the bare loop. Where other work
shares the machine, the ratio of computing times, of all threads and processes, says more than that of the clock.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import torch

from nearsight.benchmarking.results import instructions
from nearsight.config.files import load_recipe
from nearsight.data.loader import default_workers
from nearsight.data.samples import Subset
from nearsight.features import BATCH, extract_features, pool_features
from nearsight.runs.run import processor
from nearsight.tasks import get_task
from nearsight.timing import ratio_interval
from nearsight.training.session import prepare

MODEL = "deit_tiny_patch16_224"


def now() -> tuple[float, float]:
    """Seconds by the clock, and those that this process and those it waited for have computed."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("NEARSIGHT_DATA"))
    parser.add_argument("--weights", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--images", type=int, default=512)
    arguments = parser.parse_args()
    if arguments.data is None or arguments.weights is None:
        parser.error("give --data and --weights")
    recipe = load_recipe("frozen", {"model.name": MODEL, "model.weights": str(arguments.weights)})
    prepared = prepare(str(arguments.data / "clothing.zip"), recipe)
    task, cpu = get_task("classify"), torch.device("cpu")
    built = task.build(prepared.recipe, prepared.data)
    some = Subset(prepared.train, torch.arange(arguments.images).numpy())
    workers = default_workers(prepared.data.kind, cpu)
    batches = [
        built.preprocessing.normalise(batch.images.float() / 255)
        for batch in task.eval_loader(some, built.preprocessing, BATCH, 0)
    ]
    built.model.eval()
    times: dict[str, list[float]] = {"bare": [], "extraction": []}
    computed: dict[str, list[float]] = {"bare": [], "extraction": []}
    for number in range(arguments.rounds + 1):  # the first round warms up
        marks = [now()]
        with torch.inference_mode():
            for images in batches:
                pool_features(built.model, images)
        marks.append(now())
        with tempfile.TemporaryDirectory() as folder:
            extract_features(task, built, some, folder, workers=workers)
            marks.append(now())
        for index, name in enumerate(times) if number else ():
            times[name].append(marks[index + 1][0] - marks[index][0])
            computed[name].append(marks[index + 1][1] - marks[index][1])
    speed = ratio_interval(times["bare"], times["extraction"])
    alone = ratio_interval(computed["bare"], computed["extraction"])
    results = {
        "model": MODEL,
        "images": len(some),
        "batch": BATCH,
        "workers": workers,
        "machine": {"processor": processor(), "threads": torch.get_num_threads(), "instructions": instructions()},
        "load": os.getloadavg()[0],
        "seconds": times,
        "computing seconds": computed,
        "speed by the bare loop": {"median": speed.value, "from": speed.low, "to": speed.high},
        "by computing seconds": {"median": alone.value, "from": alone.low, "to": alone.high},
    }
    target = Path(__file__).parent / "results" / "extraction.json"
    target.write_text(json.dumps(results, indent=1) + "\n")
    print(f"extraction runs at {speed.value:.3f} of the bare loop, by computing seconds {alone.value:.3f}")


if __name__ == "__main__":
    main()
