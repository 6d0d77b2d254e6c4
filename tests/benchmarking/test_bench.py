"""The benchmark against what is known without it: sleeping models, known allocations, known growth."""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nearsight import timing
from nearsight.benchmarking import measure as measuring
from nearsight.benchmarking.measure import bench, measure, peak_memory
from nearsight.benchmarking.models import BenchModel, NotMeasured, bytes_held, make_runner, open_model
from nearsight.benchmarking.report import bench_table, printed_top1, scaling_table
from nearsight.benchmarking.results import Bench, Key, Setting, fit_exponent, growths, warn_if_restless
from nearsight.interval import Interval
from tests.rounding import assert_rounded

CPU = torch.device("cpu")
MEGA = 10**6
PEAK = 0.05  # seconds of the matrix product on the clock of a test


class Sleeper(nn.Module):
    """Takes a time for each image, and as much again for each `pixels` of it."""

    def __init__(self, seconds: float, pixels: float = math.inf):
        super().__init__()
        self.seconds, self.pixels = seconds, pixels

    def forward(self, images: Tensor) -> Tensor:
        timing.time.sleep(len(images) * self.seconds * (1 + images[0, 0].numel() / self.pixels))
        return images.mean((1, 2, 3))


class Products(nn.Module):
    """Nothing but large matrix products."""

    def __init__(self, side: int = 1536):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(side, side), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.weight @ self.weight @ self.weight


class Refuser(nn.Module):
    """Takes one image at a time only."""

    def forward(self, images: Tensor) -> Tensor:
        assert len(images) == 1, "One image at a time.\nAnd more words."
        timing.time.sleep(0.001)
        return images


class Doubled(torch.autograd.Function):
    """Doubles a tensor; holds three more of its size for a moment, in both passes."""

    @staticmethod
    def forward(ctx: object, tokens: Tensor) -> Tensor:
        return torch.stack([tokens, tokens]).sum(0)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return torch.stack([gradient, gradient, gradient, gradient]).sum(0) / 2


def subject(label: str, model: nn.Module, size: int = 8, macs: int = 1) -> BenchModel:
    return BenchModel(label, "", model.eval(), (size, size), 0, macs)


def eager(batches: tuple[int, ...] = (1,), rounds: int = 7, **changes: object) -> Setting:
    return Setting(batches, ("eager",), rounds, threads=1, **changes)  # type: ignore[arg-type]


@pytest.fixture
def asleep(clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and the matrix product take the time that they sleep, to the digit."""
    product = partial(timing.TimedCall, lambda: timing.time.sleep(PEAK), 2)
    monkeypatch.setattr(measuring, "matrix_product", lambda side, device: product(device))


@pytest.fixture
def small_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix product that takes a millisecond, where real models are measured but not their time."""
    monkeypatch.setitem(measuring.SIDE, "cpu", 256)


class Stages(nn.Module):
    """Two stages that sleep and multiply, and a head."""

    feature_info = ({"module": "first"}, {"module": "second"})

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 1), Nap(0.01))
        self.second = nn.Sequential(nn.Conv2d(4, 2, 3, padding=1), Nap(0.03))
        self.head = nn.Sequential(nn.Linear(2, 5), Nap(0.001))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.second(self.first(images)).mean((2, 3)))


class Nap(nn.Module):
    """Takes a time."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def forward(self, maps: Tensor) -> Tensor:
        timing.time.sleep(self.seconds)
        return maps


# Time


@pytest.mark.usefixtures("asleep")
def test_stages_are_timed_and_counted_alone() -> None:
    macs = [3 * 4 * 64, 9 * 4 * 2 * 64, 2 * 5]
    found = measure([subject("stages", Stages(), macs=sum(macs))], eager((2,), stages=True))
    (stages,) = found.stages.values()
    assert [stage.name for stage in stages] == ["first", "second", "head"]
    assert [stage.macs for stage in stages] == macs
    for stage, seconds in zip(stages, (0.01, 0.03, 0.001), strict=True):
        assert stage.seconds == pytest.approx([seconds] * 7)
    assert found.stage_fraction(stages[1], 2) == pytest.approx(2 * macs[1] / 0.03 / (found.side**3 / PEAK))
    assert "first" in bench_table(found).plain
    assert [stage["macs"] for stage in found.to_dict()["measurements"][0]["stages"]] == macs


@pytest.mark.usefixtures("asleep")
def test_modules_that_are_not_there_or_do_not_run_once_are_named() -> None:
    absent, unused = Stages(), Stages()
    absent.feature_info = ({"module": "first"}, {"module": "third"})
    unused.third = nn.Identity()
    unused.feature_info = ({"module": "first"}, {"module": "third"})
    found = measure([subject("absent", absent), subject("unused", unused)], eager(stages=True))
    assert len(found.seconds) == 2 and not found.stages
    assert "names modules that it lacks" in found.missing[0].reason
    assert "does not call each of them once" in found.missing[1].reason


@pytest.mark.usefixtures("asleep")
def test_a_model_without_stages_is_named_and_still_measured() -> None:
    found = measure([subject("plain", Sleeper(0.01))], eager(stages=True))
    assert len(found.seconds) == 1
    assert "Sleeper lists no maps" in found.missing[0].reason


@pytest.mark.usefixtures("asleep")
def test_models_that_sleep_are_measured_as_long_as_they_sleep() -> None:
    fast, slow = subject("fast", Sleeper(0.01)), subject("slow", Sleeper(0.03))
    found = measure([slow, fast], eager((1, 2)), reference="fast")
    for label, seconds in (("fast", 0.01), ("slow", 0.03)):
        for batch in (1, 2):
            key = Key(label, (8, 8), "eager", batch)
            assert found.milliseconds(key) == pytest.approx([1e3 * seconds * batch] * 3)
            assert found.images_per_second(key) == pytest.approx([1 / seconds] * 3)
    assert found.ratio(Key("slow", (8, 8), "eager", 2)) == pytest.approx([3.0] * 3)


@pytest.mark.usefixtures("asleep")
def test_the_fraction_of_the_peak_is_that_of_multiply_adds_in_a_second() -> None:
    found = measure([subject("half", Sleeper(PEAK), macs=measuring.SIDE["cpu"] ** 3 // 2)], eager((1, 3), rounds=3))
    for key in found.seconds:
        assert found.fraction(key) == pytest.approx([0.5] * 3)


@pytest.mark.slow
def test_a_model_of_large_products_runs_near_the_peak() -> None:
    model = Products()
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1))
    found = measure([subject("products", model, macs=counter.get_total_flops() // 2)], eager(rounds=5))
    (key,) = found.seconds
    assert 0.3 < found.fraction(key).value < 2


@pytest.mark.usefixtures("asleep")
def test_tasks_take_turns() -> None:
    calls: list[str] = []

    class Named(nn.Module):
        def __init__(self, name: str):
            super().__init__()
            self.name = name

        def forward(self, images: Tensor) -> None:
            calls.append(self.name)
            timing.time.sleep(0.2)  # long enough to be called once for each measurement

    measure([subject("a", Named("a")), subject("b", Named("b"))], eager(rounds=3, memory=False))
    assert "".join(calls)[-6:] == "ababab"


def test_a_restless_machine_is_named() -> None:
    assert warn_if_restless([0.10, 0.11, 0.12], 1000) is None
    warning = warn_if_restless([0.10, 0.11, 0.40], 1000)
    assert warning is not None and "5 to 20 GFLOP/s" in warning  # 2 * 1000**3 operations


# What does not run


@pytest.mark.usefixtures("asleep")
def test_what_does_not_run_is_named_and_the_rest_is_measured() -> None:
    found = measure([subject("refuser", Refuser()), subject("other", Sleeper(0.001))], eager((1, 2), rounds=2))
    (missing,) = found.missing
    assert (missing.label, missing.batch, missing.reason) == ("refuser", 2, "One image at a time.")
    assert {key.batch for key in found.seconds if key.label == "refuser"} == {1}
    assert "  eager at batch 2: One image at a time.\n" in bench_table(found).plain


def test_nothing_to_measure_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="Nothing can be measured: too small"):
        measure([NotMeasured("model", (8, 8), "too small")], eager())


@pytest.mark.usefixtures("asleep")
def test_a_signal_keeps_the_rounds_that_are_whole() -> None:
    asked: list[int] = []

    def stopped() -> int:
        asked.append(1)
        return 2 if len(asked) > 1 + 2 * 4 + 1 else 0  # once before warming up; two tasks and the peak in a round

    found = measure([subject("a", Sleeper(0.001)), subject("b", Sleeper(0.001))], eager(rounds=50), stopped=stopped)
    assert found.interrupted == 2
    assert 1 <= len(found.peak) <= 3
    assert {len(values) for values in found.seconds.values()} == {len(found.peak)}
    assert f"Interrupted after {len(found.peak)} of 50 rounds" in " ".join(bench_table(found).plain.split())


@pytest.mark.usefixtures("asleep")
def test_a_signal_before_the_first_round_leaves_nothing() -> None:
    with pytest.raises(KeyboardInterrupt):
        measure([subject("a", Sleeper(0.001))], eager(), stopped=lambda: 15)


# Memory


def test_memory_of_known_tensors() -> None:
    ones = torch.ones(MEGA)
    assert peak_memory(lambda: ones + ones, CPU) == 4 * MEGA
    assert peak_memory(lambda: (ones + ones).exp().exp(), CPU) == 8 * MEGA  # a result and what it is made from
    assert peak_memory(lambda: ones.view(1000, 1000).t(), CPU) == 0
    assert peak_memory(lambda: [torch.empty(MEGA, dtype=torch.uint8) for _ in range(5)], CPU) == 5 * MEGA


def test_memory_inside_functions_with_their_own_backward_pass() -> None:
    tokens = torch.ones(MEGA, requires_grad=True)
    with torch.no_grad():
        assert peak_memory(lambda: Doubled.apply(tokens), CPU) == 3 * 4 * MEGA  # the pair and its sum
    # The output, its gradient (one number, spread by a view), four copies and their sum.
    used = peak_memory(lambda: torch.autograd.grad(Doubled.apply(tokens).sum(), tokens), CPU)
    assert used is not None and 5 * 4 * MEGA <= used <= 7 * 4 * MEGA


def test_memory_is_the_same_from_call_to_call() -> None:
    model = open_model("lightvit_nano", 64)
    assert isinstance(model, BenchModel)
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        model.model(images)
        found = {peak_memory(lambda: model.model(images), CPU) for _ in range(3)}
    assert len(found) == 1


# Growth


def test_an_exponent_and_its_interval_are_those_of_scipy() -> None:
    from scipy.stats import linregress, t

    pixels = np.array([224, 320, 448, 640, 896]) ** 2
    costs = pixels**1.3 * np.array([1.05, 0.97, 1.01, 0.99, 1.03])
    found = fit_exponent(pixels.tolist(), costs.tolist())
    line = linregress(np.log(pixels), np.log(costs))
    reach = t.ppf(0.975, 3) * line.stderr
    assert found == pytest.approx((line.slope, line.slope - reach, line.slope + reach), abs=1e-6)
    assert found is not None and found.low < 1.3 < found.high


@pytest.mark.usefixtures("asleep")
def test_time_in_proportion_to_pixels_has_exponent_one() -> None:
    sides = (32, 64, 128)
    found = measure([subject("even", Sleeper(1e-5, 0.5), side) for side in sides], eager(rounds=5))
    (growth,) = growths(found)
    assert [key.size[0] for key in growth.keys] == list(sides)
    assert growth.latency is not None and growth.latency.value == pytest.approx(1, abs=1e-3)
    assert f"exponent of latency {growth.latency.value:.2f}" in scaling_table(found).plain


@pytest.mark.usefixtures("small_product")
def test_memory_in_proportion_to_pixels_has_exponent_one() -> None:
    found = measure([subject("relu", nn.ReLU(), side) for side in (64, 128, 256)], eager(rounds=2))
    (growth,) = growths(found)
    assert growth.memory == Interval(1.0, 1.0, 1.0)


# Models


@pytest.mark.parametrize("runtime", ["eager", "folded", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_runtime_gives_the_models_outputs(runtime: str) -> None:
    given = open_model("localvit_nano")
    assert isinstance(given, BenchModel)
    images = torch.randn(3, 3, *given.size)
    answer = make_runner(given, runtime, CPU, threads=1).call(images)
    with torch.inference_mode():
        expected = given.model(images)
    shown = torch.as_tensor(answer[0] if runtime == "onnx" else answer)  # type: ignore[index]
    assert_rounded(shown, expected, given.model)


def test_names_options_and_sizes() -> None:
    ours, changed, theirs = (open_model(text, 64) for text in ("deit_nano", "both=deit_nano:qkv=life", "resnet18"))
    assert isinstance(ours, BenchModel) and isinstance(changed, BenchModel) and isinstance(theirs, BenchModel)
    assert (changed.label, changed.name, changed.size) == ("both", "", (64, 64))
    assert changed.macs > ours.macs
    assert (theirs.name, theirs.parameters) == ("resnet18", 11_689_512)


def test_a_size_that_a_model_does_not_take_is_a_reason() -> None:
    found = open_model("maxvit_nano_rw_256", 100)
    assert found == NotMeasured("maxvit_nano_rw_256", (100, 100), "height (25) must be divisible by window (3)")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match="Neither Nearsight nor timm has a model 'deit_nanno'; did you mean 'deit_nano'"
    ):
        open_model("deit_nanno")


# The files


def measured() -> Bench:
    return measure([subject("a", Sleeper(0.002)), subject("b", Sleeper(0.004))], eager((1, 2), rounds=6))


@pytest.mark.usefixtures("asleep")
def test_the_record_holds_what_is_needed_to_compute_again(tmp_path: Path) -> None:
    record = json.loads(measured().save(tmp_path / "bench.json").read_text())
    by_model = {(row["model"], row["batch"]): row for row in record["measurements"]}
    top, bottom = by_model["b", 2], by_model["a", 2]
    ratios = np.array(top["seconds"]) / np.array(bottom["seconds"])
    assert top["time_ratio"]["median"] == pytest.approx(np.median(ratios))
    assert top["milliseconds"]["median"] == pytest.approx(1e3 * np.median(top["seconds"]))
    assert record["machine"]["device"] and record["machine"]["versions"]["torch"] == torch.__version__
    assert record["setting"]["rounds_measured"] == len(record["peak"]["seconds"]) == 6


@pytest.mark.usefixtures("asleep")
def test_the_table_fits_80_columns() -> None:
    lines = bench_table(measured(), 80).plain.splitlines()
    assert max(map(len, lines)) <= 80


def test_printed_accuracies() -> None:
    # Table 5 of LocalViT, Table 3 of LightViT, Table 2 of LIT and of the dwconv paper, Table 1 of LIFE
    expected = {
        "localvit_small": 80.8,
        "lightvit_small": 80.8,
        "lit_medium": 83.0,
        "iddwnet_base": 83.4,
        "deit_small_life": 79.35,
        "swin_tiny_patch4_window7_224": 81.3,
        "resnet18": 69.8,
        "lit_nano": None,
        "": None,
    }
    assert {name: printed_top1(name) for name in expected} == expected


# Memory that can't be had, and the machine


def test_what_a_call_holds_is_told_before_it_is_called() -> None:
    model = open_model("lightvit_nano", 64)
    assert isinstance(model, BenchModel)
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        model.model(images)
        held = peak_memory(lambda: model.model(images), CPU)
    assert held is not None
    assert 0.5 < model.bytes_held / (held + images.nbytes) < 4  # told from sizes alone: what is reused counts again
    assert bytes_held(nn.ReLU().to("meta"), torch.empty(2, 3, 5, 5, device="meta")) == 2 * 2 * 3 * 5 * 5 * 4


def test_images_beyond_the_memory_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"4096 images of 2048x2048 pixels take about [\d,]+ GB of memory, and"):
        bench("deit_nano", batch=4096, size=2048, runtimes="eager", device="cpu")


@pytest.mark.usefixtures("asleep")
def test_the_record_names_the_cpus_instructions() -> None:
    about = measured().to_dict()["machine"]
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    assert ("avx2" in about["instructions"]) == (" avx2 " in flags)
    assert about["threads"] == 1 and about["versions"]["torch"] == torch.__version__


@pytest.mark.usefixtures("small_product")
def test_the_verb_takes_names_and_shows_its_table() -> None:
    found = bench(["deit_nano"], against="lit_nano", batch=1, runtimes=["eager"], rounds=2, threads=1, device="cpu")
    assert found.reference == "lit_nano" and "deit_nano" in repr(found) and "<pre>" in found._repr_html_()
    for wrong in ({"batch": 0}, {"runtimes": "fast"}, {"scaling": [64]}, {"size": 64, "scaling": [64, 96]}):
        with pytest.raises(ValueError, match="--"):
            bench("deit_nano", device="cpu", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("runtime", ["folded-bfloat16", "onnx-int8", "openvino", "openvino-bfloat16"])
def test_runtimes_in_fewer_bits_run_the_model(runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("openvino")
    monkeypatch.setattr(timing, "instructions", lambda: ("avx512_bf16", "avx512_vnni"))
    model, images = open_model("deit_nano"), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert isinstance(model, BenchModel)
    with torch.inference_mode():
        wanted = model.model(images)
        made = make_runner(model, runtime, CPU, threads=1).call(images)
    found = torch.as_tensor(np.asarray(made[0] if not isinstance(made, Tensor) else made.float()))
    assert found.shape == wanted.shape
    if runtime != "onnx-int8":  # calibrated with noise for its time alone
        tolerance = 2**-5 if "bfloat16" in runtime else 1e-4  # bfloat16 keeps 8 bits, of which sums lose some
        assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


def test_fewer_bits_are_refused_where_the_cpu_has_no_instructions_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "instructions", lambda: ("avx2",))
    model = open_model("deit_nano")
    assert isinstance(model, BenchModel)
    for runtime in ("eager-bfloat16", "onnx-int8"):
        with pytest.raises(ValueError, match="This CPU has no instructions for"):
            make_runner(model, runtime, CPU, threads=1)
