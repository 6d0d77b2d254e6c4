"""Claims about memory and speed, measured and recorded: `python -m tools.claim_values` writes claim-values.json.

    python -m tools.claim_values memory   # the same on every machine
    python -m tools.claim_values stages   # on a machine that does nothing else

`benchmarks/claims.yaml` says by `measured` which of these numbers decides which claim.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from nearsight import bench, create_model
from nearsight.atomic import write_whole
from nearsight.benchmarking.measure import peak_memory
from nearsight.interval import Interval
from nearsight.timing import ratio_interval

from .claims import RECORDED
from .evidence import ROOT

CPU = torch.device("cpu")
FILE = ROOT / "benchmarks" / "results" / RECORDED
IMAGES = 8


def value(found: Interval, count: str, unit: str = "") -> dict[str, Any]:
    """A number as claims read it."""
    return {**found._asdict(), "unit": unit, "count": count}


def step_memory(name: str) -> int:
    """Bytes that a forward and a backward pass hold beside weights, images of 224 pixels."""
    model, images = create_model(name), torch.randn(IMAGES, 3, 224, 224)

    def step() -> None:
        model(images).sum().backward()

    step()  # gradients stay, and are no part of what is measured
    bytes_ = peak_memory(step, CPU)
    assert bytes_ is not None
    return bytes_


def memory() -> dict[str, Any]:
    """LIT's memory of a training step by that of its hosts, and of itself with attention in all stages."""
    ours = step_memory("lit_small")
    found = {"lit-memory-swin": "swin_tiny", "lit-memory-pvt": "pvt_small", "lit-memory-attention": "pvt_small_msa"}
    count = f"a step of {IMAGES} images"
    return {key: value(Interval(*[ours / step_memory(name)] * 3), count) for key, name in found.items()}


def stages() -> dict[str, Any]:
    """The fraction of the peak that a first stage reaches, by that of all later ones together."""
    found = {}
    for name in ("swin_tiny", "pvt_tiny", "lit_small"):
        measured = bench(name, batch=IMAGES, runtimes="eager", stages=True, memory=False, rounds=20, device="cpu")
        ((_, parts),) = measured.stages.items()
        _, first, *later, _ = parts
        speeds = [
            [sum(part.macs for part in group) / sum(part.seconds[turn] for part in group) for turn in range(20)]
            for group in ([first], later)
        ]
        found[f"first-stage-{name.partition('_')[0]}"] = value(ratio_interval(*speeds), "20 rounds, batch 8")
    return found


def main(wanted: str) -> None:
    """Measure one kind and keep the others."""
    kinds = {"memory": memory, "stages": stages}
    if wanted not in kinds:
        raise SystemExit(f"{wanted!r} is none of {', '.join(kinds)}.")
    kept = json.loads(FILE.read_text()) if FILE.is_file() else {}
    write_whole(FILE, (json.dumps(kept | kinds[wanted](), indent=1) + "\n").encode())
    print(Path(FILE).relative_to(ROOT))


if __name__ == "__main__":
    main(*sys.argv[1:2] or [""])
