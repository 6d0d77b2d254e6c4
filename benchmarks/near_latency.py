"""What the models of `models/near.py` cost beside their references, in one run that takes turns.

    python benchmarks/near_latency.py

`near_nano` beside `localvit_nano`, `near_micro` beside timm's `test_resnet`: images of 32 pixels, ten classes, for one
image and for 32. Ratios within rounds go to benchmarks/results/near_latency.json, with the CPU's instructions.
"""

import json
from itertools import chain
from pathlib import Path

import torch

import nearsight
from nearsight.benchmarking.results import describe_machine
from nearsight.config.recipe import ModelChoice
from nearsight.models import MODELS
from nearsight.tasks.build import build
from nearsight.timing import make_task, ratio_interval, take_turns

PAIRS = {"near_nano": "localvit_nano", "near_micro": "test_resnet"}
ROUNDS = 41
OUT = Path(__file__).parent / "results" / "near_latency.json"


@torch.inference_mode()
def ratio(name: str, reference: str, batch: int) -> dict[str, float]:
    patch = 4 if reference in MODELS else None
    models = {
        name: nearsight.create_model(name, num_classes=10).eval(),
        reference: build(ModelChoice(name=reference, img_size=32, patch_size=patch), 10).model.eval(),
    }
    images, device = torch.randn(batch, 3, 32, 32), torch.device("cpu")
    tasks = {key: make_task(lambda model=model: model(images), device) for key, model in models.items()}
    seconds = take_turns(tasks, chain.from_iterable([tuple(tasks)] * ROUNDS))
    found = ratio_interval(seconds[name], seconds[reference])
    return {"ratio": found.value, "low": found.low, "high": found.high}


def main() -> None:
    rows = [
        {"model": name, "reference": reference, "batch": batch, **ratio(name, reference, batch)}
        for name, reference in PAIRS.items()
        for batch in (1, 32)
    ]
    for row in rows:
        print(row)
    machine = {"threads": torch.get_num_threads(), **describe_machine()}
    OUT.write_text(json.dumps({"machine": machine, "rounds": ROUNDS, "ratios": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
