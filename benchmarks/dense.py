"""Do detectors and segmenters learn, from scratch and on two cores? Train, evaluate, and write docs/results/objects.md.

    python benchmarks/dense.py train --data DIR --out DIR   # hours; stopped, it goes on with the same command
    python benchmarks/dense.py page --out DIR

The data's folder has bccd_trainval.zip and camvid_trainval.zip. Images on the page are of the drawn shapes alone.
"""

import json
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence import train_or_page
from PIL import Image

from nearsight.atomic import write_whole
from nearsight.comparison.report import percent as with_interval
from nearsight.comparison.report import signed
from nearsight.comparison.results import read_results
from nearsight.console import percent

PAGES = Path(__file__).parent.parent / "docs" / "results"
IMAGES = PAGES.parent / "images" / "results"
DRIVES = ("0001TP", "0006R0")  # of CamVid; the third one is in the validation images, too


@dataclass(frozen=True)
class Goal:
    """A metric of an evaluation and what it should reach.

    Attributes:
        name: In words.
        group: Of `metrics.json`: `boxes`, `masks` or `regions`.
        key: In that group.
        bar: What it should reach.
        times: A metric of the group that the bar is a multiple of; empty for none.
    """

    name: str
    group: str
    key: str
    bar: float
    times: str = ""

    def reach(self, metrics: dict[str, Any]) -> tuple[float, float]:
        """What was found, and the bar."""
        group = metrics[self.group]
        return group[self.key], self.bar * (group[self.times] if self.times else 1)


@dataclass(frozen=True)
class Run:
    """One call of `nearsight train`, and one of `nearsight eval`.

    Attributes:
        name: Of its folder.
        title: On the page.
        data: What it learns from.
        options: The further arguments.
        goals: What it should reach.
    """

    name: str
    title: str
    data: str
    options: tuple[str, ...]
    goals: tuple[Goal, ...]

    @property
    def arguments(self) -> list[str]:
        """What follows `nearsight` on the command line."""
        return ["train", self.data, *self.options, "--out", self.name]


RUNS = (
    Run(
        *("shapes-detect", "Shapes: boxes and masks", "shapes", ("--weights", "none", "--epochs", "10")),
        (Goal("box AP50", "boxes", "ap50", 0.9), Goal("mask AP50", "masks", "ap50", 0.85)),
    ),
    Run(
        *("shapes-segment", "Shapes: semantic segmentation", "shapes?images=2600"),
        (
            *(
                "--task",
                "segment",
                "--weights",
                "none",
                "--model",
                "localvit_nano",
                "--set",
                "model.options={embed: conv_stem}",
            ),
            *("--epochs", "6", "--set", "dense.ratio=[1,1]", "--set", "dense.distort=0"),
            *("--set", "dense.flip_vertical=0.5", "--set", "optimizer.beta2=0.98", "--set", "ema=0.995"),
        ),
        (Goal("mIoU", "regions", "miou", 0.85),),
    ),
    Run(
        *("blood-cells", "Blood cells: boxes", "bccd_trainval.zip", ("--weights", "none", "--epochs", "50")),
        (Goal("box AP50", "boxes", "ap50", 0.75),),
    ),
    Run(
        *("streets", "CamVid: semantic segmentation", "camvid", ("--weights", "none", "--epochs", "30")),
        (
            Goal(
                "mIoU (bar: 2.5 times that of always predicting the most frequent class)",
                "regions",
                "miou",
                2.5,
                "most_frequent_miou",
            ),
        ),
    ),
    Run(  # the weights at hand, and all that follows from them
        *("blood-cells-pretrained", "Blood cells: boxes, from pretrained weights", "bccd_trainval.zip", ()),
        (Goal("box AP50", "boxes", "ap50", 0.88),),
    ),
    Run(
        *("streets-pretrained", "CamVid: regions, from pretrained weights", "camvid", ()),
        (Goal("mIoU", "regions", "miou", 0.5),),
    ),
)
LIFE = [
    *("compare", "camvid", "--models", "deit_nano,deit_nano_life", "--baseline", "deit_nano", "--seeds", "3"),
    *("--epochs", "30", "--set", "dense.min_size=96", "--out", "life"),
]


def take_drives(source: Path, folder: Path) -> None:
    """CamVid with the training images of two drives, so that none is of the drive to validate with."""
    if folder.exists():
        return
    part = folder.with_name(f".{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    with zipfile.ZipFile(source) as archive:
        for name in archive.namelist():
            if not name.startswith("train/") or Path(name).name.startswith(DRIVES):
                archive.extract(name, part)
    part.rename(folder)


def train(data: Path, out: Path) -> None:
    """Train and evaluate what is not yet there."""
    out.mkdir(parents=True, exist_ok=True)
    cells = out / "bccd_trainval.zip"
    if not cells.exists():
        cells.symlink_to((data / cells.name).resolve())
    take_drives(data / "camvid_trainval.zip", out / "camvid")
    for run in RUNS:
        if not evaluated(run, out):
            command(out, *run.arguments)
            command(out, "eval", run.name)
    command(out, *LIFE)


def command(out: Path, *arguments: str) -> None:
    """Call `nearsight`."""
    subprocess.run([sys.executable, "-m", "nearsight", *arguments], cwd=out, check=True)


def evaluated(run: Run, out: Path) -> Path | None:
    """The folder of the evaluation, or None."""
    found = sorted((out / run.name).glob("eval-*/metrics.json"))
    return found[0].parent if found else None


def page(out: Path) -> None:
    """Write the page, the metrics and the images."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    records = {}
    for run in RUNS:
        if folder := evaluated(run, out):
            metrics = json.loads((folder / "metrics.json").read_text())
            del metrics["weights"]  # a path of this machine
            outcome = json.loads((out / run.name / "outcome.json").read_text())
            records[run.name] = {"outcome": outcome, "metrics": metrics}
            shutil.copy(out / run.name / "curves.png", IMAGES / f"{run.name}.png")
            if run.data.startswith("shapes"):
                shrink(folder / "cases.png", IMAGES / f"{run.name}-cases.png")
    write_whole(PAGES / "objects.json", (json.dumps(records, indent=1) + "\n").encode())
    lines = [*table(records), *(line for run in RUNS if run.name in records for line in section(run, records))]
    if (out / "life" / "results.json").exists():
        lines += [*life(out / "life")]
    text = (PAGES / "objects.head.md").read_text() + "\n".join(lines) + "\n"
    write_whole(PAGES / "objects.md", text.encode())


def shrink(source: Path, target: Path) -> None:
    """An image for the page: not wider than it is shown, in 256 colours."""
    image = Image.open(source).convert("RGB")
    image.thumbnail((1200, 1200))
    image.quantize(256).save(target, optimize=True)


def table(records: dict[str, Any]) -> Iterator[str]:
    """All goals."""
    yield "\n| run | metric | reached | bar | training |"
    yield "| --- | --- | --- | --- | --- |"
    for run in RUNS:
        if run.name in records:
            found = records[run.name]
            for goal in run.goals:
                reached, bar = goal.reach(found["metrics"])
                verdict = "" if reached >= bar else " (not met)"
                minutes = f"{found['outcome']['elapsed'] / 60:.1f} min"
                yield f"| {run.title} | {goal.name} | {percent(reached)}{verdict} | {percent(bar)} | {minutes} |"


def section(run: Run, records: dict[str, Any]) -> Iterator[str]:
    """One run: commands, classes, images."""
    metrics, outcome = records[run.name]["metrics"], records[run.name]["outcome"]
    yield f"\n## {run.title}\n"
    yield f"```sh\nnearsight {shlex.join(run.arguments)}\nnearsight eval {run.name}\n```\n"
    yield (
        f"`{outcome['model']}`, {outcome['parameters'] / 1e6:.2f} M parameters, {outcome['steps']:,} steps in "
        f"{outcome['elapsed'] / 60:.1f} minutes; {metrics['images']} {metrics['split']} images.\n"
    )
    key, name = ("iou", "IoU") if "regions" in metrics else ("ap50", "AP50")
    groups = [group for group in ("boxes", "masks", "regions") if group in metrics]
    yield f"| class | {' | '.join(f'{name}, {group}' if group != 'regions' else name for group in groups)} |"
    yield f"| --- |{' --- |' * len(groups)}"
    for label in metrics[groups[0]]["classes"]:
        values = [metrics[group]["classes"][label][key] for group in groups]
        yield f"| {label} | {' | '.join('–' if value is None else percent(value) for value in values)} |"
    yield f"\n![Loss and score by epoch](../images/results/{run.name}.png)"
    if run.data.startswith("shapes"):
        yield f"\n![Best and worst cases beside the ground truth](../images/results/{run.name}-cases.png)"


def life(folder: Path) -> Iterator[str]:
    """With and without LIFE."""
    results = read_results(folder)
    lean = results.model_copy(update={"disagreements": []})  # these hold images of the data
    write_whole(PAGES / "objects-life.json", (lean.model_dump_json(indent=1) + "\n").encode())
    yield "\n## With and without LIFE\n"
    yield f"```sh\nnearsight {shlex.join(LIFE)}\n```\n"
    yield "| backbone | mIoU | difference | parameters | training |"
    yield "| --- | --- | --- | --- | --- |"
    for model in results.ranked:
        difference = model.difference
        apart = (
            f"{signed(difference.mean)} ± {100 * difference.interval.half_width:.1f} ({difference.verdict})"
            if difference
            else ""
        )
        cost = f"{model.parameters / 1e6:.2f} M | {(model.seconds or 0) / 60:.1f} min"
        yield f"| `{model.label}` | {with_interval(model.score)} | {apart or '–'} | {cost} |"


if __name__ == "__main__":
    train_or_page(__doc__, train, page)
