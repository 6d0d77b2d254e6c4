"""Predictions by the model of a run, in PyTorch."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from ..data.image import Files
from ..data.loader import default_workers, eval_loader
from ..evaluation.predictions import Progress, answer, pick_device
from ..runs.predictor import Trained, open_classifier
from .values import Answer, Prediction


def predict_with_run(
    run: str | Path | Trained,
    paths: Sequence[str],
    top: int,
    *,
    batch: int,
    workers: int | None,
    device: torch.device | str | None,
    progress: Progress,
) -> Iterator[Prediction]:
    """The predictions for each file, in order; `predict` says what the arguments are."""
    trained = run if isinstance(run, Trained) else open_classifier(run)
    place = pick_device(device)
    if workers is None:
        workers = default_workers("folder", place) if len(paths) > batch else 0
    files = Files("", paths, np.zeros(len(paths), dtype=np.int64))
    batches = progress(eval_loader(files, trained.input, batch, workers))
    return answer_batches(trained, files, batches, batch, min(top, len(trained.classes)), place)


def answer_batches(
    trained: Trained, files: Files, batches: Iterable, batch: int, top: int, device: torch.device
) -> Iterator[Prediction]:
    """The predictions for each file, in order."""
    model = trained.model.to(device)
    for number, group in enumerate(batches):
        rows = {}
        if len(group.indices):
            logits = torch.from_numpy(answer(model, trained.input, group.images, device))
            best = logits.double().softmax(dim=1).topk(top)
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            rows = dict(zip(group.indices.tolist(), pairs, strict=True))
        for index in range(number * batch, min((number + 1) * batch, len(files))):
            name = files.name(index)
            if index in rows:
                named = zip(*rows[index], strict=True)
                yield Prediction(name, tuple(Answer(trained.classes[kind], chance) for kind, chance in named))
            else:
                yield Prediction(name, (), group.bad[name])
