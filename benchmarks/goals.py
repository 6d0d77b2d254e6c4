"""The speed goals of the project, measured: each row's bar, what came out, and whether it was met.

    python benchmarks/goals.py                        # all rows; about half an hour on two cores
    python benchmarks/goals.py --only life dwnet      # some of them
    python benchmarks/goals.py --list                 # their names

Everything is a ratio within one run: two threads, 224 pixels, float32 but where a row says otherwise, medians of
rounds that take turns, the same clock as `nearsight bench`. Each row goes into benchmarks/results/goals-KIND.json as
soon as it is measured, with the machine and its load; rows that were not measured this time stay as they are. KIND are
the instructions that decide how fast a CPU is, such as avx512_vnni: machines of different kinds stay apart.
(goals.json has what was measured against the first bars, on a machine without AVX-512.)
"""

import argparse
import gc
import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearsight.atomic import write_whole
from nearsight.benchmarking.measure import SIDE, matrix_product, measure, peak_memory
from nearsight.benchmarking.models import BenchModel, open_model, reason_of
from nearsight.benchmarking.results import (
    Bench,
    Key,
    Setting,
    describe_machine,
    growths,
    plain,
    warn_if_restless,
)
from nearsight.interval import Interval
from nearsight.lattice import Grid
from nearsight.ops.sliding import unfold_gather_offsets
from nearsight.parts.depthwise import InhomogeneousKernel
from nearsight.timing import instructions, make_task, ratio_interval, refuse_precision, take_turns, with_threads

CPU = torch.device("cpu")
DEIT, SWIN = "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224"  # timm's
PEAK = {  # models of the rows about the matrix-multiply peak
    "isotropic": ("deit_tiny", "deit_tiny_life", "localvit_tiny"),
    "pyramids": ("lit_small", "dwnet_tiny", "swin_tiny", "pvt_tiny", "localvit_pvt", "t2t_vit_7", "localvit_t2t"),
    "small-products": ("lightvit_tiny", "tnt_tiny", "localvit_tnt"),
}
FLOAT32 = ("folded", "onnx", "openvino")  # compiling a model takes a minute, so that it is left out of rows over many
NARROW = ("folded-bfloat16", "openvino-bfloat16", "onnx-int8", "openvino-int8")
KINDS = ("avx512_bf16", "avx512_vnni", "avx512f", "avx2")  # the first that a CPU has names the machine
# A family's model, and the plain model that it changes. LightViT and LIT change no model in particular: they are held
# against the one that their papers compare them with at this size.
HOSTS = {
    "deit_tiny_life": DEIT,
    "localvit_tiny": DEIT,
    "localvit_t2t": "t2t_vit_7",
    "localvit_tnt": "tnt_tiny",
    "localvit_pvt": "pvt_tiny",
    "lightvit_tiny": DEIT,
    "lit_small": SWIN,
    "dwnet_tiny": SWIN,
    "ddwnet_tiny": SWIN,
    "iddwnet_tiny": SWIN,
}
FAMILIES = ("deit_tiny_life", "localvit_tiny", "lightvit_tiny", "lit_small", "dwnet_tiny")  # one model of each


@dataclass(frozen=True)
class Outcome:
    """One figure of a row.

    Attributes:
        what: In words.
        bar: What it should be at most, or at least.
        at_most: Which of the two.
        stretch: A harder bar, if there is one.
        measured: What came out, with its interval.
        details: What else was measured.
    """

    what: str
    bar: float
    at_most: bool
    stretch: float | None
    measured: Interval
    details: dict[str, Any]

    @property
    def met(self) -> bool:
        value = self.measured.value
        return value <= self.bar if self.at_most else value >= self.bar


class Rig:
    """Measures, with the settings that all rows share."""

    def __init__(self, rounds: int, threads: int):
        self.rounds, self.threads = rounds, threads
        self.warnings: list[str] = []

    def measure(self, models: Sequence[str], runtimes: Sequence[str], batches: Sequence[int] = (8,)) -> Bench:
        """Models beside each other; one that can't be measured ends the row."""
        opened = [open_model(name, 224) for name in models]
        setting = Setting(tuple(batches), tuple(runtimes), self.rounds, self.threads, CPU, memory=False)
        found = measure(opened, setting)
        self.note(found.restless)
        if found.missing:
            lost = found.missing[0]
            raise ValueError(f"{lost.label} does not run {lost.runtime}: {lost.reason}")
        return found

    def turns(self, calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Seconds of anything, in rounds."""
        with with_threads(self.threads):
            tasks = {name: make_task(call, CPU, 0.1) for name, call in calls.items()}
            tasks["peak"] = matrix_product(SIDE["cpu"], CPU)
            seconds = take_turns(tasks, list(tasks) * self.rounds)
        self.note(warn_if_restless(seconds["peak"], SIDE["cpu"]))
        return seconds

    def note(self, warning: str | None) -> None:
        """Keep a warning for the record."""
        if warning:
            print(f"  {warning}")
            self.warnings.append(warning)


def key(name: str, runtime: str = "eager", batch: int = 8) -> Key:
    return Key(name, (224, 224), runtime, batch)


def inverse(value: Interval) -> Interval:
    """Images in a second by images in a second, from times."""
    return Interval(1 / value.value, 1 / value.high, 1 / value.low)


def life(rig: Rig) -> list[Outcome]:
    found = rig.measure(["deit_tiny_life", DEIT], ["eager", "folded"], [8, 1])
    rows = []
    for batch, bar, stretch in ((8, 1.05, 1.0), (1, 1.12, 1.05)):
        host = key(DEIT, batch=batch)
        ratios = {name: found.ratio(key("deit_tiny_life", name, batch), host) for name in ("eager", "folded")}
        what = f"deit_tiny_life folded / timm's deit_tiny, latency, batch {batch}"
        rows.append(Outcome(what, bar, True, stretch, ratios["folded"], {"eager": plain(ratios["eager"])}))
    return rows


def localvit(rig: Rig) -> list[Outcome]:
    found = rig.measure(["localvit_tiny", DEIT], ["eager", "folded"])
    ratio = found.ratio(key("localvit_tiny", "folded"), key(DEIT))
    eager = found.ratio(key("localvit_tiny"), key(DEIT))
    what = "localvit_tiny folded / timm's deit_tiny, latency, batch 8"
    return [Outcome(what, 1.05, True, 0.95, ratio, {"eager": plain(eager)})]


def lightvit(rig: Rig) -> list[Outcome]:
    wide = ("folded", "compiled", "onnx", "openvino")
    narrow = tuple(name for name in NARROW if runs_here(name))
    found = rig.measure(["lightvit_tiny", DEIT], ["eager", *wide, *narrow])
    speeds = {name: inverse(found.ratio(key("lightvit_tiny", name), key(DEIT))) for name in (*wide, *narrow)}
    details = {name: plain(speed) for name, speed in speeds.items()}
    title = "lightvit_tiny / timm's deit_tiny eager, images/s, batch 8"
    rows = [Outcome(f"{title}: folded", 1.1, False, 1.3, speeds["folded"], details)]
    for words, names, bar, stretch in (
        ("best float32 runtime", wide, 1.3, 1.5),
        ("best runtime of all", (*wide, *narrow), 2.0, 3.0),
    ):
        best = max(names, key=lambda name: speeds[name].value)
        rows.append(Outcome(f"{title}: {words} ({best})", bar, False, stretch, speeds[best], details))
    return rows


def dwnet(rig: Rig) -> list[Outcome]:
    found = rig.measure(["dwnet_tiny", SWIN], ["eager", "folded"])
    speed = inverse(found.ratio(key("dwnet_tiny", "folded"), key(SWIN)))
    eager = inverse(found.ratio(key("dwnet_tiny"), key(SWIN)))
    what = "dwnet_tiny folded / timm's swin_tiny, images/s, batch 8"
    return [Outcome(what, 1.4, False, 1.6, speed, {"eager": plain(eager)})]


def dynamic(rig: Rig) -> list[Outcome]:
    found = rig.measure(["ddwnet_tiny", "dwnet_tiny"], ["eager", "folded"])
    ratios = {name: found.ratio(key("ddwnet_tiny", name), key("dwnet_tiny", name)) for name in ("eager", "folded")}
    what = "ddwnet_tiny / dwnet_tiny, latency, eager, batch 8"
    return [Outcome(what, 1.10, True, 1.05, ratios["eager"], {"folded": plain(ratios["folded"])})]


def inhomogeneous(rig: Rig) -> list[Outcome]:
    runtimes = ("eager", "folded", "compiled")
    found = rig.measure(["iddwnet_tiny", "dwnet_tiny"], runtimes)
    ratios = {name: found.ratio(key("iddwnet_tiny", name), key("dwnet_tiny", name)) for name in runtimes}
    details = {name: plain(ratio) for name, ratio in ratios.items()}
    title = "iddwnet_tiny / dwnet_tiny, latency, batch 8"
    return [
        Outcome(f"{title}: eager", 1.6, True, 1.3, ratios["eager"], details),
        Outcome(f"{title}: compiled", 1.3, True, 1.2, ratios["compiled"], details),
    ]


class Unfolded(InhomogeneousKernel):
    """The same part with the input unfolded 49-fold, as it is usually written."""

    def forward(self, tokens: torch.Tensor, grid: Grid) -> torch.Tensor:
        weights = self.predict(self.norm(self.reduce(tokens)).relu())
        weights = weights.view(-1, grid.height, grid.width, self.groups, self.kernel**2).transpose(3, 4)
        field = tokens.view(-1, grid.height, grid.width, self.groups, tokens.shape[-1] // self.groups)
        return unfold_gather_offsets(field, weights, self.kernel).flatten(3).flatten(1, 2)


def mixer_memory(rig: Rig) -> list[Outcome]:
    grid, kinds = Grid(56, 56), {"ours": InhomogeneousKernel, "unfold": Unfolded}
    held: dict[str, dict[str, int]] = {}
    for name, kind in kinds.items():
        torch.manual_seed(0)
        part = kind(96, 7, 4, 3)
        tokens = torch.randn(8, grid.tokens, 96, requires_grad=True)
        step = partial(forward_backward, partial(part, tokens, grid), [tokens, *part.parameters()])
        forward = torch.no_grad()(partial(part, tokens, grid))
        held[name] = {"forward": measure_twice(forward), "forward and backward": measure_twice(step)}
    rows = []
    for what in ("forward", "forward and backward"):
        ratio = held["ours"][what] / held["unfold"][what]
        measured = Interval(ratio, ratio, ratio)
        title = f"inhomogeneous mixer / unfold, peak memory at 56x56x96, batch 8, {what}"
        rows.append(Outcome(title, 0.1, True, None, measured, {name: bytes_[what] for name, bytes_ in held.items()}))
    return rows


def measure_twice(call: Callable[[], object]) -> int:
    """Bytes of the second call."""
    call()
    return peak_memory(call, CPU) or 0


def forward_backward(forward: Callable[[], torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """A forward and a backward pass; gradients are not kept."""
    torch.autograd.grad(forward().sum(), list(inputs))


def peak(kind: str, bar: float, stretch: float, rig: Rig) -> list[Outcome]:
    found = rig.measure(PEAK[kind], ["folded"])
    return [
        Outcome(
            f"{name} folded, fraction of the peak, batch 8",
            bar,
            False,
            stretch,
            found.fraction(key(name, "folded")),
            {},
        )
        for name in PEAK[kind]
    ]


def training(rig: Rig, pairs: dict[str, str]) -> list[Outcome]:
    bars = {"localvit_pvt": (1.25, 1.1)}
    names = list(dict.fromkeys([*pairs, *pairs.values()]))
    steps = {name: training_step(open_model(name, 224)) for name in names}
    seconds = rig.turns(steps)
    return [
        Outcome(
            f"{ours} / {host}, forward and backward, batch 8",
            bars.get(ours, (1.15, 1.05))[0],
            True,
            bars.get(ours, (1.15, 1.05))[1],
            ratio_interval(seconds[ours], seconds[host]),
            {"seconds": {name: seconds[name] for name in (ours, host)}},
        )
        for ours, host in pairs.items()
    ]


def training_step(opened: BenchModel, batch: int = 8) -> Callable[[], object]:
    """Forward and backward pass of the classification loss, in training mode."""
    model: nn.Module = opened.model.train().requires_grad_(True)
    images, labels = torch.randn(batch, 3, *opened.size), torch.randint(1000, (batch,))
    trained = list(model.parameters())
    return lambda: torch.autograd.grad(nn.functional.cross_entropy(model(images), labels), trained)


def scaling(rig: Rig) -> list[Outcome]:
    sides = (224, 320, 448, 640, 896)
    rows = []
    for name in ("lightvit_tiny", "dwnet_tiny"):
        opened = [open_model(name, side) for side in sides]
        found = measure(opened, Setting((1,), ("folded",), rig.rounds, rig.threads, CPU))
        rig.note(found.restless)
        (growth,) = growths(found)
        times = {key.size[0]: found.milliseconds(key).value for key in growth.keys}
        details = {"milliseconds": times, "memory exponent": plain(growth.memory)}
        rows.append(Outcome(f"{name} folded, exponent of latency in pixels", 1.1, True, None, growth.latency, details))
    return rows


def runtimes(rig: Rig) -> list[Outcome]:
    rows = []
    for batch, bar, stretch in ((1, 0.65, 0.5), (8, 0.80, 0.65)):
        found = rig.measure(FAMILIES, FLOAT32, [batch])
        ratios, best = {}, {}
        for name in FAMILIES:
            every = {one: found.ratio(key(name, one, batch), key(name, "folded", batch)) for one in FLOAT32}
            best[name] = min(every, key=lambda one: every[one].value)
            ratios[name] = every[best[name]]
        details = {name: {"runtime": best[name], **plain(ratio)} for name, ratio in ratios.items()}
        what = f"best float32 runtime / folded eager, latency, batch {batch}, geometric mean over families"
        rows.append(Outcome(what, bar, True, stretch, geometric_mean(ratios), details))
    return rows


def narrow(rig: Rig) -> list[Outcome]:
    """Bundles in fewer bits beside the same runtime's bundle in float32."""
    rows = []
    for runtime in (name for name in NARROW if not name.startswith(("eager", "folded")) and runs_here(name)):
        whole = runtime.partition("-")[0]
        found = rig.measure(FAMILIES, [whole, runtime])
        ratios = {name: found.ratio(key(name, runtime), key(name, whole)) for name in FAMILIES}
        details = {name: plain(ratio) for name, ratio in ratios.items()}
        what = f"{runtime} bundle / {whole} bundle in float32, latency, batch 8, geometric mean over families"
        rows.append(Outcome(what, 0.6, True, 0.4, geometric_mean(ratios), details))
    return rows


def runs_here(runtime: str) -> bool:
    """Whether this CPU has instructions for the runtime's numbers."""
    try:
        refuse_precision(runtime.partition("-")[2])
    except ValueError:
        return False
    return True


def geometric_mean(ratios: dict[str, Interval]) -> Interval:
    """Of the values and of both ends."""
    ends = zip(*ratios.values(), strict=True)
    return Interval(*(math.exp(sum(map(math.log, values)) / len(values)) for values in ends))


def of_host(*names: str) -> dict[str, str]:
    return {name: HOSTS[name] for name in names}


ROWS: dict[str, Callable[[Rig], list[Outcome]]] = {
    "life": life,
    "localvit": localvit,
    "lightvit": lightvit,
    "dwnet": dwnet,
    "dynamic": dynamic,
    "inhomogeneous": inhomogeneous,
    "mixer-memory": mixer_memory,
    "peak-isotropic": partial(peak, "isotropic", 0.72, 0.80),
    "peak-pyramids": partial(peak, "pyramids", 0.65, 0.70),
    "peak-small-products": partial(peak, "small-products", 0.48, 0.60),
    "training-deit": partial(training, pairs=of_host("deit_tiny_life", "localvit_tiny", "lightvit_tiny")),
    "training-hosts": partial(training, pairs=of_host("localvit_t2t", "localvit_tnt", "localvit_pvt")),
    "training-swin": partial(training, pairs=of_host("lit_small", "dwnet_tiny", "ddwnet_tiny", "iddwnet_tiny")),
    "scaling": scaling,
    "runtimes": runtimes,
    "narrow": narrow,
}


def record(outcome: Outcome, rounds: int) -> dict[str, Any]:
    """A figure as plain values."""
    return {**asdict(outcome), "measured": plain(outcome.measured), "met": outcome.met, "rounds": rounds}


def show(outcome: Outcome) -> None:
    value = outcome.measured
    sign = "<=" if outcome.at_most else ">="
    verdict = "met" if outcome.met else "NOT MET"
    print(f"  {outcome.what}")
    print(f"    {value.value:.3f} ({value.low:.3f} to {value.high:.3f}), bar {sign} {outcome.bar:g}: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ROWS, metavar="NAME", help="Rows to measure.")
    parser.add_argument("--list", action="store_true", help="Print the names of the rows.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    kind = next((name for name in KINDS if name in instructions()), platform.machine())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / f"goals-{kind}.json")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(ROWS))
        return
    results = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    failed = []
    for name in arguments.only or ROWS:
        print(name, flush=True)
        rig = Rig(arguments.rounds, arguments.threads)
        try:
            outcomes = ROWS[name](rig)
        except Exception as error:  # the other rows are measured all the same
            print(f"  can't be measured: {reason_of(error)}")
            failed.append(name)
            continue
        for outcome in outcomes:
            show(outcome)
        machine = {**describe_machine(), "threads": arguments.threads}
        rows = [record(outcome, rig.rounds) for outcome in outcomes]
        results[name] = {"machine": machine, "warnings": rig.warnings, "rows": rows}
        ordered = {row: results[row] for row in ROWS if row in results}
        write_whole(arguments.out, (json.dumps(ordered, indent=1) + "\n").encode())
        gc.collect()
    if failed:
        raise SystemExit(f"Not measured: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
