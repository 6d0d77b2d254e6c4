"""A comparison that never ran: predictions drawn by chance, and the results made from them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nearsight.comparison.examples import find_examples
from nearsight.comparison.results import Comparison, Curve, Latency, ModelResult, RunResult
from nearsight.comparison.statistics import RunPredictions, SharedPredictions, best_of, differences, scores
from nearsight.data import open_data
from nearsight.interval import Interval

Make = Callable[..., Comparison]


def drawn_predictions(fraction_right: dict[str, float], labels: Any, seeds: int) -> SharedPredictions:
    generator = np.random.default_rng(0)

    def draw(fraction: float) -> RunPredictions:
        given = np.where(generator.random(len(labels)) < fraction, labels, (labels + 1) % 10)
        right = (given == labels).astype(np.float64)
        return RunPredictions(right, right, np.stack([given, labels]))

    runs = {label: {seed: draw(fraction) for seed in range(seeds)} for label, fraction in fraction_right.items()}
    return SharedPredictions("test", np.arange(len(labels)), runs)


def drawn_model(
    label: str, rank: int, predictions: SharedPredictions, baseline: str, convnets: tuple[str, ...]
) -> ModelResult:
    found = scores(predictions)
    curve = Curve(epoch=[1, 2], seconds=[1.0, 2.0], loss=[2.0, 1.0], val_score=[0.2, 0.4])
    runs = [
        RunResult(seed=seed, score=0.5, val_score=0.5, seconds=60.0 * (rank + 1), epochs=2, curve=curve)
        for seed in predictions.runs[label]
    ]
    milliseconds = 1.0 + rank
    return ModelResult(
        label=label,
        name=label,
        options={},
        convnet=label in convnets,
        parameters=700_000,
        macs=49_000_000,
        runs=runs,
        score=found[label],
        difference=differences(predictions, baseline).get(label),
        behind_best=differences(predictions, best_of(found)).get(label),
        latency=Latency(
            milliseconds=Interval(milliseconds, milliseconds - 0.1, milliseconds + 0.1),
            images_per_second=Interval(1000.0, 990.0, 1010.0),
        ),
    )


@pytest.fixture
def make_results() -> Make:
    """Results of models that are right on a fraction of the digits; each model is slower than the one before."""

    def make(
        fraction_right: dict[str, float],
        *,
        baseline: str | None = None,
        seeds: int = 3,
        convnets: tuple[str, ...] = (),
        source: str = "digits",
        suggestion: str | None = None,
    ) -> Comparison:
        data = open_data("digits")
        assert data.test is not None
        predictions = drawn_predictions(fraction_right, data.test.labels, seeds)
        labels = list(fraction_right)
        reference = baseline or labels[0]
        found = scores(predictions)
        best = best_of(found)
        other = reference if reference != best else next(label for label in labels if label != best)
        return Comparison(
            data={"source": source, "kind": "digits", "classes": 10, "images": {"test": 359}, "made": ["val"]},
            task="classify",
            metric="accuracy",
            split="test",
            recipe={
                "name": "small-data",
                "changes": [],
                "img_size": 32,
                "batch": 64,
                "limit": None,
                "budget": None,
                "epochs": dict.fromkeys(labels, 2),
            },
            seeds=list(range(seeds)),
            baseline=reference,
            suggestion=suggestion,
            models=[drawn_model(label, i, predictions, reference, convnets) for i, label in enumerate(labels)],
            disagreements=find_examples(predictions, best, other, data.test, data.classes, []),
            machine={"device": "cpu", "threads": 2, "nearsight": "1", "torch": "2", "timm": "1", "python": "3"},
            command="nearsight compare digits",
        )

    return make
