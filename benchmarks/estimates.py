"""How long runs take beside what the plan said: 32 and 224 pixels; frozen, fine-tuned, localized, from scratch.

Each case is measured and then run as `nearsight train` does it, in this process, from opening the data to the pages:

    python benchmarks/estimates.py --data DIR --weights FILE     # DIR has clothing.zip and cifar10_subset.npz
    python benchmarks/estimates.py ... --only "frozen, 224 pixels"

Results go to benchmarks/results/estimates.json, which keeps cases of former calls. Goal: within 20 %.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from nearsight.benchmarking.results import instructions
from nearsight.config.files import load_recipe
from nearsight.retrofit import LocalizeOptions
from nearsight.runs.run import processor
from nearsight.training.estimate import measure
from nearsight.training.loop import run_training
from nearsight.training.session import prepare

MODEL = "deit_tiny_patch16_224"
LOCAL = LocalizeOptions.parse("ffn=localvit").as_json()
# Recipe, file of the data, side, training images, epochs, and other settings; `weights` stands for the file given.
CASES: dict[str, tuple[str, str, int, int, int, dict[str, Any]]] = {
    "frozen, 224 pixels": ("frozen", "clothing.zip", 224, 600, 0, {"weights": True}),
    "frozen, 128 pixels": ("frozen", "cifar10_subset.npz", 128, 2000, 0, {"weights": True}),
    "fine-tuned, 224 pixels": ("fine-tune", "clothing.zip", 224, 200, 2, {"weights": True}),
    "localized, 224 pixels": ("retrofit", "clothing.zip", 224, 200, 2, {"weights": True, "model.localize": LOCAL}),
    "from scratch, 32 pixels": ("small-data", "cifar10_subset.npz", 32, 2000, 3, {"model.name": "localvit_nano"}),
    "from scratch, 224 pixels": ("small-data", "clothing.zip", 224, 200, 2, {"model.name": "localvit_tiny"}),
}


def run_case(name: str, data: Path, weights: Path) -> dict[str, Any]:
    """Seconds that were expected, and that it took."""
    recipe_name, file, side, images, epochs, settings = CASES[name]
    given = {"model.img_size": side, "data.limit": images} | ({"epochs": epochs} if epochs else {})
    given |= {key: value for key, value in settings.items() if key != "weights"}
    if settings.get("weights"):
        given |= {"model.name": MODEL, "model.weights": str(weights)}
    recipe, source = load_recipe(recipe_name, given), str(data / file)
    began = time.perf_counter()
    prepared = prepare(source, recipe)
    preparing = time.perf_counter() - began
    cost = measure(prepared, torch.device("cpu"), preparing)
    planned = time.perf_counter()
    expected = cost.frozen(prepared) if recipe.frozen else cost.training(prepared, epochs)
    settled = recipe.model_copy(update={"precision": cost.precision})
    with tempfile.TemporaryDirectory() as folder:
        run_training(source, settled, Path(folder) / "run", quiet=True, cpu=True)
    real = time.perf_counter() - planned
    found = {"expected": expected, "real": real, "ratio": expected / real, "planning": planned - began}
    return found | {"precision": cost.precision, "compared": cost.compared, "load": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("NEARSIGHT_DATA"))
    parser.add_argument("--weights", type=Path, default=None)
    parser.add_argument("--only", choices=CASES, action="append")
    arguments = parser.parse_args()
    if arguments.data is None or arguments.weights is None:
        parser.error("give --data and --weights")
    target = Path(__file__).parent / "results" / "estimates.json"
    results: dict[str, Any] = json.loads(target.read_text()) if target.is_file() else {"cases": {}}
    machine = {"processor": processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    results["machine"] = machine | {"instructions": list(instructions()), "torch": torch.__version__}
    for name in arguments.only or CASES:
        found = results["cases"][name] = run_case(name, arguments.data, arguments.weights)
        target.write_text(json.dumps(results, indent=1) + "\n")
        print(
            f"{name}: {found['expected']:.0f} s expected, {found['real']:.0f} s taken ({found['ratio']:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
