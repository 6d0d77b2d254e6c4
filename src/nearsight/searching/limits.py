"""What a model may cost: milliseconds beside a reference model on this machine, or multiply-adds."""

import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from ..models.counting import count
from ..timing import make_task, median_interval, ratio_interval, take_turns

BATCHES = (1, 32)
ROUNDS, FEW = 15, 3  # of measurements; so few tell that a model is far too slow
FAR = 1.5
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class TrialCost:
    """What a model costs.

    Attributes:
        parameters: Numbers that training changes.
        macs: Multiply-adds of one image.
        ms: Milliseconds of a batch, by its images; beside a reference those that it would take in the minute in which
            the reference was measured first, so that a slow minute does not count.
        fraction: Of the limit; at most 1 fits. With a reference, the larger one of both batches.
    """

    parameters: int
    macs: int
    ms: dict[int, float]
    fraction: float

    @property
    def fits(self) -> bool:
        """Whether it is within the limit."""
        return self.fraction <= 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrialCost":
        """What `to_dict` gave, also through JSON, where keys are texts.

        Raises:
            ValueError: It was edited.
        """
        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            raise ValueError(f"The cost of a trial was edited ({values!r:.80}); begin the search anew.") from error

    def __str__(self) -> str:
        times = " · ".join(f"{ms:.2f} ms for {batch}" for batch, ms in self.ms.items())
        return f"{times}, {self.macs / 1e6:.1f} M multiply-adds"


class Limit:
    """What models may cost, and how that is measured.

    Args:
        size: Height and width of the images.
        device: Where latency is measured.
        reference: A model that others may be as slow as, for one image and for 32.
        name: Of the reference.
        ms: Milliseconds that one image may take.
        macs: Multiply-adds that one image may take.
    """

    def __init__(
        self,
        size: tuple[int, int],
        device: torch.device,
        *,
        reference: nn.Module | None = None,
        name: str = "",
        ms: float | None = None,
        macs: int | None = None,
    ):
        self.size, self.device, self.name, self.ms, self.macs = size, device, name, ms, macs
        self.reference = None if reference is None else reference.eval().to(device)
        self.images = {batch: torch.randn(batch, 3, *size, device=device) for batch in BATCHES}
        self.reference_cost: TrialCost | None = None
        if self.reference is not None:
            self.reference_cost = self.measure(self.reference)

    def __str__(self) -> str:
        if self.reference_cost is not None:
            times = " and ".join(f"{ms:.2f} ms for {batch}" for batch, ms in self.reference_cost.ms.items())
            return f"the latency of {self.name} ({times} image(s))"
        return f"{self.ms:g} ms an image" if self.ms is not None else f"{(self.macs or 0) / 1e6:g} M multiply-adds"

    def measure(self, model: nn.Module) -> TrialCost:
        """What a model costs; one that is far too slow is measured roughly."""
        model = model.eval().to(self.device)
        cost = count(model, self.size)
        models: dict[str, nn.Module] = {"it": model}
        if self.reference is not None and model is not self.reference:
            models["reference"] = self.reference
        found = TrialCost(cost.parameters, cost.macs, {}, 0.0)
        for rounds in (FEW, ROUNDS):
            seconds = self.time(models, rounds)
            if rounds == FEW:  # whatever else the machine did in one of them must not count
                seconds = {key: [min(values)] for key, values in seconds.items()}
            ms = {batch: 1000 * median_interval(seconds["it", batch]).value for batch in BATCHES}
            if "reference" in models and self.reference_cost is not None:
                ratios = {b: ratio_interval(seconds["it", b], seconds["reference", b]).value for b in BATCHES}
                fraction = max(ratios.values())
                ms = {batch: ratio * self.reference_cost.ms[batch] for batch, ratio in ratios.items()}
            elif self.ms is not None:
                fraction = ms[1] / self.ms
            else:
                fraction = cost.macs / self.macs if self.macs else 1.0
            found = TrialCost(cost.parameters, cost.macs, ms, fraction)
            if fraction > FAR or self.macs:
                break
        return found

    @torch.inference_mode()
    def time(self, models: dict[str, nn.Module], rounds: int) -> dict[tuple[str, int], list[float]]:
        """Seconds of each model with each batch, in rounds in which all take turns."""

        def caller(model: nn.Module, images: Tensor) -> Any:
            return lambda: model(images)

        tasks = {
            (name, batch): make_task(caller(model, self.images[batch]), self.device)
            for name, model in models.items()
            for batch in BATCHES
        }
        return take_turns(tasks, [key for _ in range(rounds) for key in tasks])


def parse_macs(given: str | int | float) -> int:
    """Multiply-adds of a text like `40M` or of a number.

    Example:
        >>> parse_macs("40M"), parse_macs("1.5G"), parse_macs(1000)
        (40000000, 1500000000, 1000)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", str(given).strip())
    number = round(float(found.group(1)) * UNITS[found.group(2)]) if found else 0
    if not 1 <= number <= 10**15:
        raise ValueError(f"--macs {given} is no number of multiply-adds; write it like 40M or 1.5G.")
    return number
