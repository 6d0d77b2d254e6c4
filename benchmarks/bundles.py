"""Every task and head as a bundle, from a training on real data to predictions without PyTorch.

    python benchmarks/bundles.py                     # all; about an hour of one core, most of it the blood cells
    python benchmarks/bundles.py --only linear frozen

For each: `nearsight train` for a short time, `nearsight export`, then `nearsight predict BUNDLE` and `nearsight eval
BUNDLE DATA` in a process that ends with an error if torch was imported, and `nearsight eval RUN` beside it. A run that
is finished is not trained again. Each result goes into benchmarks/results/bundles.json as soon as it is there: the
metrics of both sides on all validation images, what both find in 30 photos, and what `verify.json` says of three sizes.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

from nearsight.atomic import write_whole
from nearsight.benchmarking.results import describe_machine

RESULTS = Path(__file__).parent / "results" / "bundles.json"
# Runs the command line, and fails if it brought torch.
BARE = (
    "import sys; from nearsight.cli.shell import main\n"
    "try: main()\n"
    "finally: assert 'torch' not in sys.modules, 'torch was imported'"
)
VISIBLE = ("--set", "dense.min_size=256", "--set", "dense.max_size=320")
SCENES = ("--limit", "40", "--epochs", "2", *VISIBLE)
OBJECTS = ("--limit", "60", "--epochs", "2", *VISIBLE)
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "retinanet": ("bccd_trainval.zip", ("--head", "retinanet", "--limit", "120", "--epochs", "6", *VISIBLE)),
    "mask-rcnn": ("coco_mini.zip", ("--head", "mask-rcnn", *OBJECTS)),
    "cascade-mask-rcnn": ("coco_mini.zip", ("--head", "cascade-mask-rcnn", *OBJECTS)),
    "detr": ("bccd_trainval.zip", ("--head", "detr", *OBJECTS)),
    "semantic-fpn": ("camvid_trainval.zip", ("--head", "semantic-fpn", *SCENES)),
    "upernet": ("camvid_trainval.zip", ("--head", "upernet", *SCENES)),
    "linear": ("camvid_trainval.zip", ("--head", "linear", "--limit", "96", "--epochs", "3", *VISIBLE)),
    "multi-label": ("labels", ("--task", "multilabel", "--epochs", "2", "--img-size", "128")),
    "frozen": ("clothing.zip", ("--recipe", "frozen", "--limit", "200")),
    "localized timm": (
        "clothing.zip",
        (
            *("--model", "timm/deit_tiny_patch16_224", "--localize", "ffn=localvit", "--limit", "200"),
            *("--epochs", "1", "--img-size", "128"),
        ),
    ),
}


def nearsight(*words: object) -> str:
    """What a command prints."""
    return finish([sys.executable, "-m", "nearsight", *map(str, words)])


def bare(*words: object) -> str:
    """The same in a process without torch."""
    return finish([sys.executable, "-c", BARE, *map(str, words)])


def finish(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def labels_of(archive: Path, target: Path) -> Path:
    """A table with the classes in each image of COCO mini, of those that are frequent, and the images beside it."""
    if not target.is_dir():
        part = target.with_suffix(".part")
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(part)
        rows = []
        for split in ("train", "val"):
            coco = json.loads((part / "annotations" / f"instances_{split}.json").read_text())
            names = {one["id"]: one["name"] for one in coco["categories"]}
            found: dict[int, set[str]] = {one["id"]: set() for one in coco["images"]}
            for one in coco["annotations"]:
                found[one["image_id"]].add(names[one["category_id"]])
            kept = ("person", "chair", "car", "bottle", "cup", "dining table")
            for one in coco["images"]:
                here = "|".join(name for name in kept if name in found[one["id"]])
                rows.append((one["file_name"], here, split))
        with open(part / "labels.csv", "w", newline="") as file:
            csv.writer(file).writerows([("image", "labels", "split"), *rows])
        part.rename(target)
    return target / "labels.csv"


def measure(name: str, work: Path, data: Path) -> dict[str, Any]:
    """One model, from its training to the metrics of its bundle."""
    source, options = CASES[name]
    used = labels_of(data / "coco_mini.zip", work / "labels") if source == "labels" else data / source
    run, bundle = work / name.replace(" ", "-"), work / f"{name.replace(' ', '-')}.bundle"
    report = work / f"{name.replace(' ', '-')}.report"
    os.chdir(work)  # where `predict` draws what detectors and segmenters find
    began, finished = time.perf_counter(), (run / "outcome.json").is_file()
    nearsight("train", used, *options, "--seed", 0, "--threads", 1, "--cpu", "--quiet", "--out", run)
    trained = None if finished else time.perf_counter() - began
    nearsight("export", run, "--out", bundle, "--force")
    metrics = {
        "pytorch": numbers(json.loads(nearsight("eval", run, used, "--split", "val", "--out", report, "--json"))),
        "bundle": numbers(json.loads(bare("eval", bundle, used, "--split", "val", "--out", report, "--json"))),
    }
    photos = work / "photos"
    if not photos.is_dir():
        with zipfile.ZipFile(data / "photos30.zip") as zipped:
            zipped.extractall(photos)
    theirs = json.loads(nearsight("predict", run, photos, "--json", "--force"))
    mine = json.loads(bare("predict", bundle, photos, "--json", "--force"))
    return {
        "data": source,
        "options": list(options),
        "seconds of training": trained,
        "metrics": metrics,
        "photos": {"images": len(mine), "predictions": [count(mine), count(theirs)]},
        "verified": json.loads((bundle / "verify.json").read_text())["sizes"],
    }


def count(found: list[Any]) -> int:
    """Objects in all images of a detector; images of any other model."""
    return sum(len(one.get("objects", [1])) for one in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", help=f"Of {', '.join(CASES)}.")
    parser.add_argument("--work", type=Path, default=Path("/tmp/nearsight-bundles"), help="folder of runs and bundles")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    given.out = given.out.resolve()
    results = json.loads(given.out.read_text()) if given.out.is_file() else {}
    for name in given.only or CASES:
        print(name, flush=True)
        found = measure(name, given.work.resolve(), Path(os.environ["NEARSIGHT_DATA"]).resolve())
        results[name] = {**found, "machine": describe_machine()}
        write_whole(given.out, (json.dumps(results, indent=1) + "\n").encode())
        print(json.dumps(found["metrics"]), flush=True)


def numbers(report: dict[str, Any], above: str = "") -> dict[str, float]:
    """The numbers of a report by their names, those of a part behind its own: `boxes.ap50`; tables are left out."""
    found = {}
    for key, value in report.items():
        if isinstance(value, float):
            found[above + key] = value
        elif isinstance(value, dict) and not above and key != "classes":
            found |= numbers(value, f"{key}.")
    return found


if __name__ == "__main__":
    main()
