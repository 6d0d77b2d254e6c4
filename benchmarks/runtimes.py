"""Which runtime is fastest in which precision, and what it costs in predictions.

    python benchmarks/runtimes.py agreement            # may run beside other work; --images 300 for a first look
    python benchmarks/runtimes.py speed                # wants a quiet machine: about 10 minutes on two cores
    python benchmarks/runtimes.py speed --compiled     # also torch.compile, which takes a minute for each model

`agreement` shows photographs (clothing, photos30 in `$NEARSIGHT_DATA`) to DeiT-Tiny with its real weights
(`$NEARSIGHT_WEIGHTS`), plain and localized, and counts in how many the first of the 1,000 classes is that of PyTorch in
float32. 8 bits are those of `nearsight export --int8 --margin 0.01`, calibrated with other photographs; layers that
stay in float are named. `speed` is `nearsight bench --runtimes all` over the families. Both write
benchmarks/results/runtimes-*.json with the CPU, its instructions, threads and versions, and print a table.
"""

import argparse
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors.torch import load_file

import nearsight
from nearsight.benchmarking.models import KNOWN, BenchModel, make_runner, onnx_call, openvino_call
from nearsight.benchmarking.results import describe_machine
from nearsight.data.image import Files
from nearsight.data.open import open_any
from nearsight.data.samples import Split, Subset
from nearsight.data.transforms import Preprocessing
from nearsight.deployment.calibration import CalibrationSet
from nearsight.deployment.onnx import write_onnx
from nearsight.deployment.quantize import quantize
from nearsight.deployment.verify import batches

RESULTS = Path(__file__).parent / "results"
SIZE = (224, 224)
FLOATS = ("folded", "eager-bfloat16", "folded-bfloat16", "onnx", "openvino", "openvino-bfloat16")
SPEED = ("localvit_tiny", "lightvit_tiny", "lit_tiny", "dwnet_tiny", "deit_tiny_life", "swin_tiny", "pvt_tiny")
CPU = torch.device("cpu")


def real_models() -> dict[str, torch.nn.Module]:
    """DeiT-Tiny with its weights, plain and with LocalViT's part in it, which begins at nothing."""
    file = Path(os.environ["NEARSIGHT_WEIGHTS"]) / "deit_tiny_patch16_224.safetensors"
    plain = timm.create_model("deit_tiny_patch16_224")
    plain.load_state_dict(load_file(file))
    torch.manual_seed(0)
    local = nearsight.localize(plain, ffn="localvit", layers="low")
    with torch.no_grad():  # as little as a few steps of training move it, so that the branch is not folded to nothing
        for parameter in local.parameters():
            if not parameter.any():
                parameter.normal_(0, 1e-3)
    return {"deit_tiny": plain.eval(), "deit_tiny localized": local.eval()}


def photographs(most: int | None) -> tuple[dict[str, Split], Split]:
    """Those to measure with, by the name of their set, and others to calibrate with."""
    folder, draw = Path(os.environ["NEARSIGHT_DATA"]), np.random.default_rng(0)
    clothing = open_any(str(folder / "clothing.zip"))
    assert clothing.train is not None and clothing.val is not None and clothing.test is not None
    order = draw.permutation(len(clothing.train))
    calibrate, rest = Subset(clothing.train, np.sort(order[:256])), Subset(clothing.train, np.sort(order[256:]))
    sets: dict[str, Split] = {"train": rest, "val": clothing.val, "test": clothing.test}
    if most is not None:
        sets = {"val": Subset(clothing.val, np.sort(draw.permutation(len(clothing.val))[:most]))}
    target = Path(tempfile.mkdtemp()) / "photos30"
    with zipfile.ZipFile(folder / "photos30.zip") as archive:
        archive.extractall(target)
    paths = sorted(str(path) for path in target.rglob("*.jpg"))
    sets["photos30"] = Files("", paths, np.zeros(len(paths), dtype=np.int64))
    return sets, calibrate


def agreement(most: int | None) -> dict[str, Any]:
    """For each model and runtime, in how many photographs the first class is PyTorch's in float32."""
    sets, calibrate = photographs(most)
    shown = Preprocessing(SIZE, crop=0.875)
    rows = []
    for name, model in real_models().items():
        known = BenchModel(name, name, model, SIZE, 0, 0)
        calls = {runtime: make_runner(known, runtime, CPU, threads=1).call for runtime in ("eager", *FLOATS)}
        kept: tuple[str, ...] = ()
        with tempfile.TemporaryDirectory() as scratch:
            file, small = Path(scratch) / "model.onnx", Path(scratch) / "int8.onnx"
            write_onnx(nearsight.fold(model), file, SIZE)
            some = CalibrationSet("clothing", next(iter(sets.values())), calibrate, labelled=False)
            try:
                kept = quantize(file, small, some, shown, margin=0.01).kept
                calls["onnx-int8"] = onnx_call(small, CPU, 1)
                calls["openvino-int8"] = openvino_call(small, "int8", CPU, 1)
            except ValueError as error:
                print(f"{name} in 8 bits: {error}")
        same: dict[str, dict[str, list[bool]]] = {runtime: {} for runtime in calls if runtime != "eager"}
        with torch.inference_mode():
            for part, split in sets.items():
                for group in batches(split, shown, 32):
                    images = torch.from_numpy(group.images)
                    wanted = first_class(calls["eager"](images))
                    for runtime, found in same.items():
                        is_same = first_class(calls[runtime](images)) == wanted
                        key = "photos30" if part == "photos30" else "clothing"
                        found.setdefault(key, []).extend(is_same.tolist())
        for runtime, found in same.items():
            row = {key: {"images": len(values), "same": float(np.mean(values))} for key, values in found.items()}
            rows.append({"model": name, "runtime": runtime, **row, "kept_in_float": list(kept) * ("int8" in runtime)})
            told = ", ".join(f"{key} {100 * one['same']:.2f} % of {one['images']:,}" for key, one in row.items())
            print(f"{name:20} {runtime:18} {told}", flush=True)
    return {"agreement": rows}


def first_class(found: Any) -> np.ndarray:
    """The class with the largest logit, whatever a runtime calls its outputs `[B]`."""
    logits = found if isinstance(found, torch.Tensor) else found[0]
    return np.asarray(logits.float() if isinstance(logits, torch.Tensor) else logits).argmax(axis=1)


def speed(rounds: int, models: list[str], compiled: bool) -> dict[str, Any]:
    """All runtimes over the families, for one image and for eight, and which of them won."""
    runtimes = [name for name in KNOWN if compiled or not name.startswith("compiled")]
    found = nearsight.bench(
        models, against="timm/deit_tiny_patch16_224", batch=[1, 8], runtimes=runtimes, rounds=rounds, memory=False
    )
    print(found)
    winners = []
    for model in found.models:
        for batch in found.setting.batches:
            keys = [key for key in found.seconds if (key.label, key.batch) == (model.label, batch)]
            first = next(key for key in keys if key.runtime == "folded")
            best = min(keys, key=lambda key: found.milliseconds(key).value)
            ratio = found.ratio(best, first)
            assert ratio is not None
            winners.append(
                {"model": model.label, "batch": batch, "runtime": best.runtime, "by_folded": ratio._asdict()}
            )
            print(f"{model.label:24} batch {batch}: {best.runtime} in {ratio.value:.2f} of the folded model's time")
    return {**found.to_dict(), "winners": winners}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["agreement", "speed"])
    parser.add_argument("--images", type=int, help="clothing photographs; all without")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--models", default=",".join(SPEED))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = (
        agreement(given.images)
        if given.what == "agreement"
        else speed(given.rounds, given.models.split(","), given.compiled)
    )
    out = given.out or RESULTS / f"runtimes-{given.what}.json"
    machine = {**describe_machine(), "threads": torch.get_num_threads()}
    out.write_text(json.dumps({"machine": machine, **found}, indent=1, ensure_ascii=False) + "\n")
    print(f"Wrote {out}.")


if __name__ == "__main__":
    main()
