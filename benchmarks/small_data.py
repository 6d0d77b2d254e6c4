"""Do the papers' claims hold on small data? Train, compare, and write docs/results/small-data.md.

    python benchmarks/small_data.py train --data DIR --out DIR   # hours; stopped, it goes on with the same command
    python benchmarks/small_data.py page --out DIR

The comparisons are calls of `nearsight compare` on the file cifar10_subset.npz in the data's folder. The page, the
results without pictures, and all answers to the test images go to docs/results.
"""

import io
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from evidence import model_table, train_or_page

from nearsight.checkpoints.native import write_whole
from nearsight.compare.answers import Answers, read_answers
from nearsight.compare.plan import read_plan
from nearsight.compare.results import Results, read_results
from nearsight.compare.statistics import Estimate, estimate_difference
from nearsight.compare.verdict import signed

PAGES = Path(__file__).parent.parent / "docs" / "results"
DATA = "cifar10_subset.npz"
BOTH = "life_localvit=deit_nano:qkv=life:ffn=localvit"
PLACES = {"low": "1-2", "mid": "3-4", "high": "5-6"}  # of six layers
NANO = [
    *("deit_nano", "deit_nano_life", "deit_nano_life_1=deit_nano:qkv=life_one_scale", "localvit_nano", BOTH),
    *(f"local_{place}=localvit_nano:local_layers={layers}" for place, layers in PLACES.items()),
    *("dwnet_nano", "ddwnet_nano", "iddwnet_nano", "swin_nano", "lightvit_nano", "lit_nano"),
    *("test_resnet", "lcnet_050", "resnet18"),
]
FEW = ["deit_nano", "deit_nano_life", "localvit_nano", "test_resnet"]


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
        return [
            *("compare", DATA, "--models", ",".join(self.models), "--baseline", "deit_nano", "--epochs"),
            *(str(self.epochs), "--seeds", "3", "--set", "batch=32", *limit, "--out", self.name),
        ]


COMPARISONS = (
    Comparison("nano", 9000, 3, NANO),
    Comparison("images-2000", 2000, 6, FEW),
    Comparison("images-500", 500, 16, FEW),
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
    sizes = {"nano": "9,000", "images-2000": "2,000", "images-500": "500"}
    for name, images in sizes.items():
        yield Claim(f"LIFE beats the plain model ({images} images)", "deit_nano_life", "deit_nano", name)
    yield Claim("several scales beat one (LIFE)", "deit_nano_life", "deit_nano_life_1")
    for name, images in sizes.items():
        yield Claim(f"LocalViT's feed-forward part beats the plain one ({images} images)", *LOCAL, name)
    yield Claim("it helps more in low layers than in high ones", "local_low", "local_high")
    yield Claim("dynamic depth-wise convolution is no worse than static", "ddwnet_nano", "dwnet_nano", margin=0.01)
    yield Claim("inhomogeneous, too, is no worse than static", "iddwnet_nano", "dwnet_nano", margin=0.01)
    yield Claim("depth-wise convolution is no worse than window attention", "dwnet_nano", "swin_nano", margin=0.01)
    yield Claim("LIFE and LocalViT together beat LocalViT", "life_localvit", LOCAL[0])
    yield Claim("LIFE and LocalViT together beat LIFE", "life_localvit", "deit_nano_life")
    for name, images in sizes.items():
        text = f"LocalViT's transformer beats a small ConvNet ({images} images)"
        yield Claim(text, LOCAL[0], "test_resnet", name)


LOCAL = ("localvit_nano", "deit_nano")


def train(data: Path, out: Path) -> None:
    """Make the comparisons that are not yet made."""
    out.mkdir(parents=True, exist_ok=True)
    link = out / DATA
    if not link.exists():
        link.symlink_to((data / DATA).resolve())
    for comparison in COMPARISONS:
        subprocess.run([sys.executable, "-m", "nearsight", *comparison.arguments()], cwd=out, check=True)


def page(out: Path) -> None:
    """Write the page, the results and the answers."""
    PAGES.mkdir(parents=True, exist_ok=True)
    results, answers = {}, {}
    for comparison in COMPARISONS:
        folder = out / comparison.name
        plan = read_plan(folder)
        found = read_answers(plan, folder) if plan else None
        if found is None:
            continue
        answers[comparison.name] = found
        results[comparison.name] = read_results(folder)
        lean = results[comparison.name].model_copy(update={"disagreements": []})  # these hold images of the data
        write_whole(PAGES / f"{comparison.name}.json", (lean.model_dump_json(indent=1) + "\n").encode())
        write_whole(PAGES / f"{comparison.name}.npz", answer_file(found))
    text = (PAGES / "small-data.head.md").read_text() + "\n".join(body(results, answers)) + "\n"
    write_whole(PAGES / "small-data.md", text.encode())


def answer_file(answers: Answers) -> bytes:
    """All answers to the test images, `[runs, images]`, with the names of the runs."""
    runs = {f"{label}-seed{seed}": run for label, seeds in answers.runs.items() for seed, run in seeds.items()}
    given = np.stack([run.classes for run in runs.values() if run.classes is not None]).astype(np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, runs=np.array(list(runs)), answers=given[:, 0], labels=given[0, 1])
    return file.getvalue()


def body(results: dict[str, Results], answers: dict[str, Answers]) -> Iterator[str]:
    """The lines of the page behind its head."""
    yield "\n## Verdicts\n"
    yield "| claim | difference in points | 95 % interval | seeds | verdict |"
    yield "| --- | --- | --- | --- | --- |"
    for claim in claims():
        if claim.comparison in answers:
            yield claim_row(claim, answers[claim.comparison])
    for comparison in COMPARISONS:
        if comparison.name in results:
            yield f"\n## {comparison.images:,} training images, {comparison.epochs} epochs\n"
            yield f"```sh\nnearsight {shlex.join(comparison.arguments())}\n```\n"
            yield from model_table(results[comparison.name])
    if "nano" in results:
        yield "\n## Where LocalViT's part stands\n"
        yield "Layers 1 and 2, 3 and 4, 5 and 6, all, and none; from the first comparison.\n"
        yield from model_table(results["nano"], [*(f"local_{place}" for place in PLACES), *LOCAL])


def claim_row(claim: Claim, answers: Answers) -> str:
    """A claim with what was found."""
    seeds = [seed for seed in answers.runs.get(claim.more, {}) if seed in answers.runs.get(claim.less, {})]
    if not seeds:
        return f"| {claim.text} | | | 0 | not yet trained |"
    found = estimate_difference(answers.parts(claim.more, seeds), answers.parts(claim.less, seeds))
    interval = f"{signed(found.low)} to {signed(found.high)}"
    pair = f"`{claim.more}` − `{claim.less}`"
    verdict = claim.judge(found) if len(seeds) > 1 else "one seed only"
    return f"| {claim.text}: {pair} | {signed(found.mean)} | {interval} | {len(seeds)} | {verdict} |"


if __name__ == "__main__":
    train_or_page(__doc__, train, page)
