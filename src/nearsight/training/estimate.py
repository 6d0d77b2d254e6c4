"""What a run costs on this machine, from a few measured steps, and in which precision it costs least."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from timm.utils import ModelEmaV3
from torch import nn

from ..data.loader import Batch, Batches, default_workers
from ..features import BATCH, compute, head_seconds, pool_features
from ..tasks import get_task
from ..timing import wait, with_threads
from .optim import make_optimizer

if TYPE_CHECKING:
    from .session import Prepared

FIRST = 8  # images in the first step, whose time decides how many there are in the measured ones
STEP_SECONDS = 1.0  # that a measured step takes at most, unless that is less than the first images
ROUNDS = 3  # of measured steps
# How many times as fast bfloat16 has to be to be taken: the nano models stand at 1.13 and 1.14 on a CPU with
# instructions for it, DeiT-Tiny at 2.17, and other work on the machine must not decide between them.
FASTER = 1.3
LEAST_SECONDS = 10.0  # seconds of training from which on a choice can save more than it costs
PAGE_SECONDS = 4.0  # start of readers and trackers, and the pages at the end
DISK = 300e6  # bytes of a checkpoint that are written in a second


@dataclass(frozen=True)
class RunCost:
    """What a run costs, as measured.

    Attributes:
        forward: Seconds of an image that is predicted.
        step: Seconds of an image that is trained with.
        start: Seconds before the first step and after the last one.
        saving: Seconds of a checkpoint.
        features: Seconds of an image whose frozen features are computed, every core at an image of its own.
        head: Seconds of the regression on frozen features; 0 where there could be none.
        precision: `float32` or `bfloat16`, of the training.
        compared: Seconds of an image in a step in each precision, where both were measured.
    """

    forward: float
    step: float
    start: float = 0.0
    saving: float = 0.0
    features: float = 0.0
    head: float = 0.0
    precision: str = "float32"
    compared: dict[str, float] | None = None

    def epoch(self, prepared: "Prepared") -> float:
        """Seconds of an epoch with its checkpoint and its part of a validation."""
        images = len(prepared.train) // max(1, prepared.recipe.batch) * prepared.recipe.batch
        return images * self.step + len(prepared.val) / prepared.recipe.validate_every * self.forward + self.saving

    def training(self, prepared: "Prepared", epochs: int) -> float:
        """Seconds of a run with so many epochs, with all that stands around them."""
        test = prepared.data.test
        return self.start + epochs * self.epoch(prepared) + (len(test) if test is not None else 0) * self.forward

    def frozen(self, prepared: "Prepared") -> float:
        """Seconds of the features of all images and the regression on them."""
        return self.start + sum(map(len, prepared.data.splits().values())) * self.features + self.head


class TrialSteps:
    """Steps with the model of a recipe on real images, one at a time; nothing of them is kept.

    Args:
        prepared: The data, and the recipe with nothing left open but its precision.
        device: Where to compute.
    """

    def __init__(self, prepared: "Prepared", device: torch.device):
        recipe, data = prepared.recipe, prepared.data
        if recipe.distill is not None:  # of the student alone; images without labels can't be mixed then
            still = recipe.augment.model_copy(update={"mixup": 0.0, "cutmix": 0.0})
            recipe = recipe.model_copy(update={"distill": None, "augment": still})
        self.prepared, self.recipe, self.device, self.task = prepared, recipe, device, get_task(recipe.task)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.built = self.task.build(recipe, data)
        self.model = self.built.model.to(device)
        self.objective = self.task.objective(recipe, data, self.built, device)
        self.optimizer = make_optimizer(self.model, recipe.optimizer, recipe.batch)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0  # the model stays what it is
        self.ema = ModelEmaV3(self.model, decay=recipe.ema, use_warmup=True) if recipe.ema else None
        self.most = min(recipe.batch // recipe.accumulate, len(prepared.train)) // 2 * 2 or 1
        self.size = min(FIRST, self.most)

    def read(self) -> Batch:
        """The first images of an epoch, augmented."""
        train, order = self.prepared.train, {"repeats": self.recipe.augment.repeats, "seed": self.recipe.seed}
        draws = Batches(train, batch=self.size, epochs=1, start=0, parts=1, mine=range(1), **order)
        return next(iter(self.task.train_loader(train, self.recipe, self.built.preprocessing, draws, 0)))

    def train(self, batch: Batch, precision: str, clock: Callable[[], float] = time.perf_counter) -> float:
        """Seconds of an image in a step."""
        self.model.train()
        began = clock()
        prepared = self.objective.prepare(batch, 0, 0)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = self.objective.loss(self.model, *prepared)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip or 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.model, 0)
        wait(self.device)
        return (clock() - began) / self.size

    def settle_size(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """Find out how many images a measured step may have; returns the seconds of one until now."""
        batch = self.read()
        seconds = [self.train(batch, "float32", clock) for _ in range(2)][-1]  # the first is slower
        self.size = max(self.size, min(self.most, int(STEP_SECONDS / max(seconds, 1e-9)) // 2 * 2))
        return seconds

    def choose_precision(self) -> tuple[str, dict[str, float] | None]:
        """The precision of the recipe, or the faster one if it leaves that open; and what was measured for it.

        A training of a few seconds stays in float32, as a choice would take longer than it saves. On a CPU a single
        thread is measured by the time that it computes itself, so that other work on the machine does not count.
        """
        recipe, is_cpu = self.recipe, self.device.type == "cpu"
        if recipe.precision != "auto":
            return recipe.precision, None
        has_bfloat16 = is_cpu or (
            self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        )
        if self.most == 1 or not has_bfloat16:  # where there is, whether it is faster has to be measured
            return "float32", None
        clock = time.thread_time if is_cpu else time.perf_counter
        with with_threads(1) if is_cpu else nullcontext():
            if self.settle_size(clock) * len(self.prepared.train) * recipe.epochs < LEAST_SECONDS:
                return "float32", None
            batch, times = self.read(), {"float32": list[float](), "bfloat16": list[float]()}
            for _ in range(ROUNDS):
                for precision, found in times.items():
                    found.append(self.train(batch, precision, clock))
                if times["bfloat16"][-1] > 2 * times["float32"][-1]:  # there are no instructions for it
                    break
        fastest = {precision: min(found) for precision, found in times.items()}
        return "bfloat16" if fastest["float32"] > FASTER * fastest["bfloat16"] else "float32", fastest

    def predict(self) -> tuple[float, float]:
        """Seconds of an image: to read it, and to predict it."""
        val, preprocessing = self.prepared.val, self.built.preprocessing
        shown = range(min(BATCH, self.task.batch, len(val)))
        self.model.eval()
        began = time.perf_counter()
        batch = next(iter(self.task.eval_loader(val, preprocessing, len(shown), 0, shown)))
        read = time.perf_counter()
        self.task.predict(self.model, batch, preprocessing, self.device, self.prepared.data.classes)
        wait(self.device)
        return (read - began) / len(shown), (time.perf_counter() - read) / len(shown)

    def extract(self) -> float:
        """Seconds of an image whose frozen features are computed, as `extract_features` does it."""
        shown = range(min(BATCH // 2, len(self.prepared.val)))
        loader = self.task.eval_loader(self.prepared.val, self.built.preprocessing, len(shown), 0, shown)
        batches = [(0, False, next(iter(loader)))] * (torch.get_num_threads() if self.device.type == "cpu" else 1)
        self.model.eval()
        for _ in range(2):  # the first is slower
            began = time.perf_counter()
            for _ in compute(self.built, batches, self.device):
                pass
        return (time.perf_counter() - began) / len(batches) / len(shown)


def measure(prepared: "Prepared", device: torch.device, preparing: float = 0.0) -> RunCost:
    """What a run costs, from some steps and predictions on real images.

    Args:
        prepared: The data, and the recipe with nothing left open but its precision.
        device: Where to compute.
        preparing: Seconds that it took to open the data, which a run does again.
    """
    recipe, began = prepared.recipe, time.perf_counter()
    trial = TrialSteps(prepared, device)
    start = preparing + PAGE_SECONDS + time.perf_counter() - began
    workers = default_workers(prepared.data.kind, device) if recipe.data.workers is None else recipe.data.workers

    def together(times: Sequence[tuple[float, float]]) -> float:
        reading, computing = (sorted(found)[len(found) // 2] for found in zip(*times, strict=True))
        if not workers:
            return reading + computing
        if device.type == "cpu":  # readers and the model share the cores
            return computing + reading / torch.get_num_threads()
        return max(computing, reading / workers)

    predicted = [trial.predict() for _ in range(ROUNDS + 1)][1:]
    forward, features, head = together(predicted), 0.0, 0.0
    if trial.task.is_linear and recipe.model.weights is not None:
        computed = trial.extract()
        features = together([(read, computed) for read, _ in predicted])
        shown = trial.built.preprocessing
        with torch.no_grad():
            blank = torch.zeros(1, shown.channels, *shown.size, device=device)
            shape = pool_features(trial.model, blank).shape[1:]
        head = head_seconds(len(prepared.train), shape, len(prepared.data.classes))
    if recipe.frozen:
        return RunCost(forward, 0.0, start, features=features, head=head)
    precision, compared = trial.choose_precision()
    trial.settle_size()
    steps = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        batch = trial.read()
        steps.append(((time.perf_counter() - began) / trial.size, trial.train(batch, precision)))
    step = together(steps[1:])
    bytes_written = 4 * (3 + (trial.ema is not None)) * sum(parameter.numel() for parameter in trial.model.parameters())
    return RunCost(forward, step, start, bytes_written / DISK, features, head, precision, compared)
