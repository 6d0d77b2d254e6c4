"""Do the papers' claims hold on small data? Train, compare, and write docs/results/small-data.md.

    python benchmarks/small_data.py train --data DIR --out DIR   # hours; stopped, it goes on with the same command
    python benchmarks/small_data.py page --out DIR

The comparisons are calls of `nearsight compare` on the file cifar10_subset.npz in the data's folder. The page, the
results without images, and all predictions for the test images go to docs/results.
"""

import io
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from evidence import model_table, train_or_page
from numpy.typing import NDArray

from nearsight.atomic import write_whole
from nearsight.comparison.plan import read_plan
from nearsight.comparison.report import signed
from nearsight.comparison.results import Comparison as Compared
from nearsight.comparison.results import read_results
from nearsight.comparison.statistics import Estimate, SharedPredictions, estimate_difference, read_predictions
from nearsight.console import percent
from nearsight.interval import wilson
from nearsight.runs.run import Outcome, Run

PAGES = Path(__file__).parent.parent / "docs" / "results"
DATA = "cifar10_subset.npz"
TEST_IMAGES = 2000
BOTH = "life_localvit=deit_nano:qkv=life:ffn=localvit"
DEPTHS = {"low": "1-2", "mid": "3-4", "high": "5-6"}  # of six layers
NANO = [
    *("deit_nano", "deit_nano_life", "deit_nano_life_1=deit_nano:qkv=life_one_scale", "localvit_nano", BOTH),
    *(f"local_{depth}=localvit_nano:local_layers={layers}" for depth, layers in DEPTHS.items()),
    *("dwnet_nano", "ddwnet_nano", "iddwnet_nano", "swin_nano", "lightvit_nano", "lit_nano"),
    *("test_resnet", "lcnet_050", "resnet18"),
]
FEW = ["deit_nano", "deit_nano_life", "localvit_nano", "test_resnet"]
LONGER = [*FEW, "dwnet_nano", "ddwnet_nano"]
DEFAULT = "default"  # folder of the training that the recipe chooses by itself


Right: TypeAlias = dict[str, dict[int, NDArray[np.bool_]]]  # by label and seed, whether it is right on each test image


@dataclass(frozen=True)
class Comparison:
    """One call of `nearsight compare`.

    Attributes:
        name: Of its folder.
        images: Training images; 9,000 are all, as 1,000 of the 10,000 are set aside for validation.
        epochs: Of every run.
        models: What is compared.
    """

    name: str
    images: int
    epochs: int
    models: list[str]

    def arguments(self) -> list[str]:
        """What follows `nearsight` on the command line."""
        limit = [] if self.images == 9000 else ["--limit", str(self.images)]
        models = ["--models", ",".join(self.models), "--baseline", "deit_nano"]
        short = ["--epochs", str(self.epochs), "--seeds", "3", "--set", "batch=32"]
        return ["compare", DATA, *models, *short, *limit, "--out", self.name]


COMPARISONS = (
    Comparison("nano", 9000, 3, NANO),
    Comparison("images-2000", 2000, 6, FEW),
    Comparison("images-500", 500, 16, FEW),
    Comparison("images-2000-longer", 2000, 20, LONGER),
)


@dataclass(frozen=True)
class Claim:
    """What a paper says, as a difference that should be above 0, or at least not below.

    Attributes:
        text: In words.
        more: The model that should be better.
        less: The other one.
        comparison: Where it is tested.
        margin: Points that it may be worse.
    """

    text: str
    more: str
    less: str
    comparison: str = "nano"
    margin: float = 0.0

    def judge(self, found: Estimate) -> str:
        """Confirmed where the whole interval says so, not confirmed where it says the contrary."""
        if found.low > -self.margin:
            return "confirmed"
        return "not confirmed" if found.high < -self.margin else "undecided at this scale"


def claims() -> Iterator[Claim]:
    """The claims that this scale can test."""
    settings = {made.name: f"{made.images:,} images, {made.epochs} epochs" for made in COMPARISONS}
    for name, made_by in settings.items():
        yield Claim(f"LIFE beats the plain model ({made_by})", "deit_nano_life", "deit_nano", name)
    yield Claim("several scales beat one (LIFE)", "deit_nano_life", "deit_nano_life_1")
    for name, made_by in settings.items():
        yield Claim(f"LocalViT's feed-forward part beats the plain one ({made_by})", *LOCAL, name)
    yield Claim("it helps more in low layers than in high ones", "local_low", "local_high")
    for name in ("nano", "images-2000-longer"):
        text = f"dynamic depth-wise convolution is no worse than static ({settings[name]})"
        yield Claim(text, "ddwnet_nano", "dwnet_nano", name, margin=0.01)
    yield Claim("inhomogeneous, too, is no worse than static", "iddwnet_nano", "dwnet_nano", margin=0.01)
    yield Claim("depth-wise convolution is no worse than window attention", "dwnet_nano", "swin_nano", margin=0.01)
    yield Claim("LIFE and LocalViT together beat LocalViT", "life_localvit", LOCAL[0])
    yield Claim("LIFE and LocalViT together beat LIFE", "life_localvit", "deit_nano_life")
    for name, made_by in settings.items():
        text = f"LocalViT's transformer beats a small ConvNet ({made_by})"
        yield Claim(text, LOCAL[0], "test_resnet", name)


LOCAL = ("localvit_nano", "deit_nano")


def train(data: Path, out: Path) -> None:
    """Make the comparisons that are not yet made."""
    out.mkdir(parents=True, exist_ok=True)
    link = out / DATA
    if not link.exists():
        link.symlink_to((data / DATA).resolve())
    for arguments in (*(comparison.arguments() for comparison in COMPARISONS), ["train", DATA, "--out", DEFAULT]):
        subprocess.run([sys.executable, "-m", "nearsight", *arguments], cwd=out, check=True)


def page(out: Path) -> None:
    """Record the comparisons that have ended, and write the page from all that are recorded."""
    PAGES.mkdir(parents=True, exist_ok=True)
    for comparison in COMPARISONS:
        record(out / comparison.name)
    if outcome := Run(out / DEFAULT).outcome():
        write_whole(PAGES / f"{DEFAULT}.json", (json.dumps(outcome.to_dict(), indent=1) + "\n").encode())
    recorded = [comparison.name for comparison in COMPARISONS if (PAGES / f"{comparison.name}.json").exists()]
    results = {name: Compared.model_validate_json((PAGES / f"{name}.json").read_text()) for name in recorded}
    predictions = {name: read_right(PAGES / f"{name}.npz") for name in recorded}
    text = (PAGES / "small-data.head.md").read_text() + "\n".join(body(results, predictions)) + "\n"
    write_whole(PAGES / "small-data.md", text.encode())


def record(folder: Path) -> None:
    """Copy the results and the predictions of a comparison to the page's folder, if it has ended."""
    plan = read_plan(folder)
    predictions = read_predictions(plan, folder) if plan else None
    if predictions is None or not (folder / "results.json").exists():
        return
    lean = read_results(folder).model_copy(update={"disagreements": []})  # these hold images of the data
    write_whole(PAGES / f"{folder.name}.json", (lean.model_dump_json(indent=1) + "\n").encode())
    write_whole(PAGES / f"{folder.name}.npz", prediction_file(predictions))


def prediction_file(predictions: SharedPredictions) -> bytes:
    """All predictions for the test images, `[runs, images]`, with the names of the runs."""
    runs = {f"{label}-seed{seed}": run for label, seeds in predictions.runs.items() for seed, run in seeds.items()}
    given = np.stack([run.classes for run in runs.values() if run.classes is not None]).astype(np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, runs=np.array(list(runs)), predictions=given[:, 0], labels=given[0, 1])
    return file.getvalue()


def read_right(path: Path) -> Right:
    """Which test images each run of a comparison predicted right, from what `prediction_file` wrote."""
    right: Right = {}
    with np.load(path) as file:
        predicted = file["predictions" if "predictions" in file else "answers"]
        for run, given in zip(file["runs"].tolist(), predicted, strict=True):
            label, _, seed = run.rpartition("-seed")
            right.setdefault(label, {})[int(seed)] = given == file["labels"]
    return right


def body(results: dict[str, Compared], predictions: dict[str, Right]) -> Iterator[str]:
    """The lines of the page behind its head."""
    yield "\n## Verdicts\n"
    yield "| claim | difference in points | 95 % interval | seeds | verdict |"
    yield "| --- | --- | --- | --- | --- |"
    for claim in claims():
        if claim.comparison in predictions:
            yield claim_row(claim, predictions[claim.comparison])
    for comparison in COMPARISONS:
        if comparison.name in results:
            yield f"\n## {comparison.images:,} training images, {comparison.epochs} epochs\n"
            yield f"```sh\nnearsight {shlex.join(comparison.arguments())}\n```\n"
            yield from model_table(results[comparison.name])
    if (file := PAGES / f"{DEFAULT}.json").exists():
        yield from default_lines(Outcome(**json.loads(file.read_text())))
    if "nano" in results:
        yield "\n## Where LocalViT's part stands\n"
        yield "Layers 1 and 2, 3 and 4, 5 and 6, all, and none; from the first comparison.\n"
        yield from model_table(results["nano"], [*(f"local_{depth}" for depth in DEPTHS), *LOCAL])


def default_lines(outcome: Outcome) -> Iterator[str]:
    """What the default does with the same images when nothing is cut short."""
    assert outcome.test_score is not None
    found = wilson(round(outcome.test_score * TEST_IMAGES), TEST_IMAGES)
    yield f"\n## 9,000 training images, the default to its end\n\n```sh\nnearsight train {DATA}\n```\n"
    minutes = f"{outcome.elapsed / 60:.0f} minutes on a core that had other work, too"
    interval = f"95 % interval {percent(found.low)} to {percent(found.high)}, for the choice of images alone"
    yield f"`{outcome.model}`, {outcome.epochs} epochs, one seed, {minutes}:"
    yield f"**{percent(found.value)}** of the test images right ({interval}),"
    yield f"and {percent(outcome.val_score)} of the validation images in the best epoch (number {outcome.epoch})."


def claim_row(claim: Claim, right: Right) -> str:
    """A claim with what was found."""
    more, less = right.get(claim.more, {}), right.get(claim.less, {})
    seeds = [seed for seed in more if seed in less]
    if not seeds:
        return f"| {claim.text} | | | 0 | not yet trained |"
    found = estimate_difference(np.stack([more[seed] for seed in seeds]), np.stack([less[seed] for seed in seeds]))
    interval = f"{signed(found.low)} to {signed(found.high)}"
    pair = f"`{claim.more}` − `{claim.less}`"
    verdict = claim.judge(found) if len(seeds) > 1 else "one seed only"
    return f"| {claim.text}: {pair} | {signed(found.mean)} | {interval} | {len(seeds)} | {verdict} |"


if __name__ == "__main__":
    train_or_page(__doc__, train, page)
