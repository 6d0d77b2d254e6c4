"""Features of a backbone, kept on the disk, and what a frozen backbone's classifier is made of: a linear head.

Extraction goes on where a kill stopped it. The head is a logistic regression whose strength, and whose pooling where
the model has a class token, are chosen by cross-validation on the training images alone.
"""

import hashlib
import io
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

from .atomic import remove, write_whole
from .data.loader import Batch
from .data.samples import Split
from .data.sources.npz import load_arrays
from .models.pooling import POOLINGS, has_poolings, pool_both_ways, set_pooling
from .tasks.base import Built, Task

BATCH = 32  # images at a time: more are no faster on a CPU
CHUNK = 8 * BATCH  # images in a file; batches are the same wherever the work was taken up again
FOLDS = 5
MOST_FOR_FOLDS = 10_000  # images up to which each fold is left out once; of more, one fold is
# Weight decay of the regression on features with a standard deviation of 1, from the strongest to the weakest.
STRENGTHS = tuple(float(10**power) for power in np.arange(0.5, -4.01, -0.5))
STEPS = 300  # of a regression at most; it starts from the solution for the strength before
ROUGH = 1e-5  # tolerance that is enough to choose between strengths
LARGE = 30_000_000  # products in a step of a regression from which on several threads pay
NEIGHBOURS = (1, 5, 10, 20, 50)
EVALUATIONS = 200  # of the loss in a search over the strengths, with what stands around each
MOST_TIMED = 4000  # images that stand for all when a step is timed


@dataclass(frozen=True)
class FrozenFeatures:
    """What a backbone says of the images of a split.

    Attributes:
        values: `[n, P, C]`: the class token and the mean of the patches, or what the model pools itself (P = 1).
        indices: Numbers of the images in their split `[n]`; unreadable ones are missing.
        originals: Height and width of the images as they were read `[n, 2]`.
        bad: Names of unreadable images, and why they are.
        seconds: Time that it took to compute them.
        spared: Part of this that a former call took.
    """

    values: NDArray[np.float32]
    indices: NDArray[np.int64]
    originals: NDArray[np.int64]
    bad: dict[str, str]
    seconds: float = 0.0
    spared: float = 0.0


def pool_features(model: nn.Module, images: Tensor) -> Tensor:
    """Features `[B, P, C]` of images `[B, 3, H, W]` that are normalised already.

    Example:
        >>> import nearsight
        >>> pool_features(nearsight.create_model("deit_nano"), torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 2, 96])
    """
    backbone: Any = model
    found = backbone.forward_features(images)
    if has_poolings(model):
        return pool_both_ways(found, backbone.num_prefix_tokens)
    return backbone.forward_head(found, pre_logits=True).flatten(1)[:, None]


def extract_features(
    task: Task,
    built: Built,
    split: Split,
    folder: str | Path,
    *,
    fingerprint: str = "",
    batch: int = BATCH,
    workers: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] = lambda done: None,
    check: Callable[[], None] = lambda: None,
) -> FrozenFeatures:
    """Features of a split; those that a former call with the same arguments has written are taken from the disk.

    Args:
        task: Reads the images.
        built: The model and how images are shown to it.
        split: The images.
        folder: Of the files; it is made if it does not exist.
        fingerprint: Of the split: files that were written for another one are not taken.
        batch: Images at a time.
        workers: Processes that read images.
        device: Where to compute.
        progress: Is told how many more images are done.
        check: Is called after each batch; it may raise to end the work, of which whole files are kept.
    """
    folder, model, device = Path(folder), built.model.to(device).eval(), torch.device(device)
    about = {"fingerprint": fingerprint, "images": len(split), "chunk": CHUNK, "batch": batch}
    about |= {"preprocessing": asdict(built.preprocessing), "model": built.name, "weights": hash_weights(model)}
    keep_only_same(folder, json.loads(json.dumps(about)))
    chunks: dict[int, FrozenFeatures] = {}
    todo: list[int] = []
    for start in range(0, len(split), CHUNK):
        chunk = read_chunk(folder / f"{start:09d}.npz", range(start, min(start + CHUNK, len(split))))
        known = next((other.values.shape[1:] for other in chunks.values() if len(other.values)), None)
        if chunk is None or (len(chunk.values) and known not in (None, chunk.values.shape[1:])):
            todo.append(start)
        else:
            chunks[start] = chunk
            progress(min(CHUNK, len(split) - start))
    spared = sum(chunk.seconds for chunk in chunks.values())
    mark, parts = time.monotonic(), list[tuple[Batch, NDArray[np.float32]]]()
    # One run of chunks after the other: processes that read images are not started while threads compute.
    runs = (by_chunk(task, built, split, first, last, batch, workers) for first, last in neighbours(todo))
    for start, is_last, group, values in chain.from_iterable(compute(built, run, device) for run in runs):
        parts.append((group, values))
        progress(len(group.images) + len(group.bad))
        check()
        if is_last:
            values = np.concatenate([found for _, found in parts if len(found)] or [values])
            chunks[start] = FrozenFeatures(
                values,
                np.concatenate([group.indices.numpy() for group, _ in parts]),
                np.concatenate([group.originals.numpy() for group, _ in parts]),
                {name: reason for group, _ in parts for name, reason in group.bad.items()},
                time.monotonic() - mark,
            )
            mark, parts = time.monotonic(), []
            write_chunk(folder / f"{start:09d}.npz", chunks[start])
    whole = [chunks[start] for start in sorted(chunks) if len(chunks[start].indices)]
    bad = {name: reason for start in sorted(chunks) for name, reason in chunks[start].bad.items()}
    if not whole:
        raise ValueError("None of the images can be read; run `nearsight data check` on the data.")
    return FrozenFeatures(
        np.concatenate([chunk.values for chunk in whole]),
        np.concatenate([chunk.indices for chunk in whole]),
        np.concatenate([chunk.originals for chunk in whole]),
        bad,
        sum(chunk.seconds for chunk in chunks.values()),
        spared,
    )


def compute(
    built: Built, batches: Iterable[tuple[int, bool, Batch]], device: torch.device
) -> Iterator[tuple[int, bool, Batch, NDArray[np.float32]]]:
    """The features `[n, P, C]` of each of the batches that `by_chunk` gives.

    On a CPU every core has a batch of its own: the cores need not wait for each other within each layer, nor for the
    process that reads images, and what comes out does not depend on their number.
    """
    threads = torch.get_num_threads() if device.type == "cpu" else 1

    def features(group: Batch) -> NDArray[np.float32]:
        if not len(group.images):
            return np.zeros((0, 1, 1), np.float32)
        with torch.inference_mode():
            shown = built.preprocessing.normalise(group.images.to(device, non_blocking=True).float() / 255)
            return pool_features(built.model, shown).float().cpu().numpy()

    waiting: deque[tuple[int, bool, Batch, Future[NDArray[np.float32]]]] = deque()

    def first() -> tuple[int, bool, Batch, NDArray[np.float32]]:
        start, is_last, group, found = waiting.popleft()
        return start, is_last, group, found.result()

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for start, is_last, group in batches:
                waiting.append((start, is_last, group, pool.submit(features, group)))
                if len(waiting) > 2 * threads:
                    yield first()
            while waiting:
                yield first()
    finally:
        torch.set_num_threads(threads)


def by_chunk(
    task: Task, built: Built, split: Split, first: int, last: int, batch: int, workers: int
) -> Iterator[tuple[int, bool, Batch]]:
    """The batches from one chunk to another, with the start of their chunk and whether it ends with them.

    They come from one loader, so that no chunk waits.
    """
    stop = min(last + CHUNK, len(split))
    batches = iter(task.eval_loader(split, built.preprocessing, batch, workers, range(first, stop)))
    for start in range(first, stop, CHUNK):
        count = -(-(min(start + CHUNK, stop) - start) // batch)
        for number in range(count):
            yield start, number == count - 1, next(batches)


def neighbours(starts: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of chunks that follow each other.

    Example:
        >>> neighbours([0, CHUNK, 4 * CHUNK]) == [(0, CHUNK), (4 * CHUNK, 4 * CHUNK)]
        True
    """
    found: list[tuple[int, int]] = []
    for start in starts:
        if found and found[-1][1] + CHUNK == start:
            found[-1] = (found[-1][0], start)
        else:
            found.append((start, start))
    return found


def hash_weights(model: nn.Module) -> str:
    """SHA-256 of all tensors of a model but its head, which features don't depend on."""
    digest, head = hashlib.sha256(), {id(tensor) for tensor in classifier(model).parameters()}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in head:
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def keep_only_same(folder: Path, about: dict[str, Any]) -> None:
    """Remove what was written for another model, other images or another preprocessing."""
    note = folder / "features.json"
    try:
        same = note.is_file() and json.loads(note.read_text(encoding="utf-8")) == about
    except (OSError, ValueError, RecursionError):
        same = False
    if not same:
        for file in (*folder.glob("*.npz"), note):
            remove(file)
        write_whole(note, json.dumps(about, indent=1).encode())


def write_chunk(path: Path, chunk: FrozenFeatures) -> None:
    """Write the features of some images; the file appears whole or not at all."""
    file = io.BytesIO()
    bad = np.array([*chunk.bad.items()] or np.zeros((0, 2)), dtype=np.str_)
    arrays = {"values": chunk.values, "indices": chunk.indices, "originals": chunk.originals, "bad": bad}
    np.savez(file, **arrays, seconds=np.array(chunk.seconds))  # type: ignore[arg-type]
    write_whole(path, file.getvalue())


def read_chunk(path: Path, images: range) -> FrozenFeatures | None:
    """What `write_chunk` wrote of some images; None where there is nothing, or something that was damaged or edited."""
    try:
        held = load_arrays(path)
        values, indices, originals, bad = (held[name] for name in ("values", "indices", "originals", "bad"))
        seconds = float(held["seconds"])
    except (ValueError, KeyError, TypeError):
        return None
    fits = values.ndim == 3 and values.dtype == np.float32 and bool(np.isfinite(values).all())
    fits = fits and indices.shape == (len(values),) and originals.shape == (len(values), 2)
    fits = fits and indices.dtype == originals.dtype == np.int64 and set(indices.tolist()) <= set(images)
    fits = fits and bad.ndim == 2 and bad.shape[1] == 2 and 0 < len(values) + len(bad) <= len(images)
    if not fits or not math.isfinite(seconds):
        return None
    return FrozenFeatures(values, indices, originals, {str(name): str(reason) for name, reason in bad}, seconds)


@dataclass(frozen=True)
class FittedHead:
    """A linear classifier of features, and how it was chosen.

    Attributes:
        weight: `[K, D]`.
        bias: `[K]`.
        pooling: What of the features it takes: `token`, `mean`, `both`, or None where there is no choice.
        strength: Weight decay.
        score: Fraction of the held-out training images (or labels) that were told right.
        tried: Score of each pooling and strength that was tried.
        neighbours: How many nearest neighbours told most held-out training images right.
        neighbours_score: Fraction of them.
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    pooling: str | None
    strength: float
    score: float
    tried: tuple[tuple[str | None, float, float], ...]
    neighbours: int
    neighbours_score: float

    def logits(self, values: NDArray[np.float32]) -> Tensor:
        """Logits `[n, K]` of features `[n, P, C]`."""
        flat = pick(values, self.pooling).astype(np.float64)
        return torch.from_numpy(flat @ self.weight.T + self.bias)


def fit_head(
    values: NDArray[np.float32],
    targets: NDArray[np.integer[Any]],
    classes: int,
    *,
    weight: NDArray[np.float64] | None = None,
    seed: int = 0,
) -> FittedHead:
    """Fit a logistic regression to features, with pooling and strength chosen by cross-validation.

    Args:
        values: Features `[n, P, C]`.
        targets: Class numbers `[n]`, or which of several labels each image has `[n, K]`.
        classes: Number of classes.
        weight: Weight of each image in the loss `[n]`; None for equal ones.
        seed: Of the division into folds.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 3, 90)
        >>> values = (np.eye(3)[labels][:, None] + 0.1 * rng.normal(size=(90, 1, 3))).astype(np.float32)
        >>> head = fit_head(values, labels, 3)
        >>> head.score, bool((head.logits(values).argmax(1).numpy() == labels).all())
        (1.0, True)
    """
    threads = torch.get_num_threads()
    alone = values.size * classes < LARGE  # threads would wait for each other longer than they compute
    try:
        torch.set_num_threads(1 if alone else threads)
        with threadpool_limits(1 if alone else None), ThreadPoolExecutor(threads if alone else 1) as pool:
            return choose_head(values, targets, classes, weight, seed, pool)
    finally:
        torch.set_num_threads(threads)


def choose_head(
    values: NDArray[np.float32],
    targets: NDArray[np.integer[Any]],
    classes: int,
    weight: NDArray[np.float64] | None,
    seed: int,
    pool: Executor,
) -> FittedHead:
    """What `fit_head` does, with folds beside each other where that pays."""
    labels = np.eye(classes)[targets] if targets.ndim == 1 else np.asarray(targets, dtype=np.float64)
    exclusive = targets.ndim == 1
    weight = np.ones(len(values)) if weight is None else weight
    folds = divide(targets if exclusive else None, len(values), seed)
    held_out = [0] if len(values) > MOST_FOR_FOLDS else sorted(set(folds.tolist()))
    tried: list[tuple[str | None, float, float]] = []
    for pooling in POOLINGS if values.shape[1] == 2 else (None,):
        known, variances, _ = decorrelate(pick(values, pooling))
        found = cross_validate(known, variances, labels, weight, exclusive, folds, held_out, pool)
        tried += [(pooling, strength, score) for strength, score in found]
    best = max(tried, key=lambda one: (one[2], one[1]))  # of equals the strongest, whose numbers are smallest
    pooling, strength, score = best
    flat = pick(values, pooling)
    known, variances, back = decorrelate(flat)
    solved = regress(known, labels, weight, strength, exclusive, variances=variances)
    slope = (back @ solved[:-1]).T
    by_neighbours = nearest(flat, labels, folds, held_out, NEIGHBOURS, exclusive)
    neighbours = max(by_neighbours, key=lambda count: by_neighbours[count])
    return FittedHead(
        slope,
        solved[-1] - slope @ flat.mean(0, dtype=np.float64),
        pooling,
        strength,
        score,
        tuple(tried),
        neighbours,
        by_neighbours[neighbours],
    )


def cross_predict(
    values: NDArray[np.float32], targets: NDArray[np.integer[Any]], classes: int, folds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Out-of-fold probabilities `[n, K]`: of each image by a logistic regression that its fold was left out of.

    Pooling and strength are those that `fit_head` chooses.

    Args:
        values: Features `[n, P, C]`.
        targets: Class numbers `[n]`, or which of several labels each image has `[n, K]`.
        classes: Number of classes.
        folds: Fold of each image `[n]`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.arange(60) % 2
        >>> values = (labels[:, None, None] + 0.1 * rng.normal(size=(60, 1, 4))).astype(np.float32)
        >>> labels[7] = 0  # a wrong one
        >>> int(cross_predict(values, labels, 2, np.arange(60) // 12)[np.arange(60), labels].argmin())
        7
    """
    head = fit_head(values, targets, classes)
    exclusive = targets.ndim == 1
    labels = np.eye(classes)[targets] if exclusive else np.asarray(targets, dtype=np.float64)
    known, variances, _ = decorrelate(pick(values, head.pooling))
    probabilities = np.empty((len(values), classes))
    for fold in np.unique(folds):
        learn, test = folds != fold, folds == fold
        weight = np.ones(int(learn.sum()))
        found = regress(known[learn], labels[learn], weight, head.strength, exclusive, variances=variances)
        logits = torch.from_numpy(known[test] @ found[:-1] + found[-1])
        probabilities[test] = (logits.softmax(1) if exclusive else logits.sigmoid()).numpy()
    return probabilities


def head_seconds(images: int, shape: Sequence[int], classes: int) -> float:
    """About how long `fit_head` takes on this machine, from the products of some of its steps.

    Args:
        images: Training images.
        shape: Of the features of an image, `(P, C)`.
        classes: Number of classes.
    """
    rows, threads, total = min(images, MOST_TIMED), torch.get_num_threads(), 0.0
    alone = images * math.prod(shape) * classes < LARGE
    folds = 1 if images > MOST_FOR_FOLDS else FOLDS
    at_once = min(threads, folds) if alone else 1
    torch.set_num_threads(1 if alone else threads)
    try:
        for dim in [shape[1], shape[1], 2 * shape[1]] if shape[0] == 2 else [shape[0] * shape[1]]:
            known, slopes = torch.ones(rows, dim, dtype=torch.float64), torch.ones(dim, classes, dtype=torch.float64)
            times = []
            for _ in range(5):
                began = time.perf_counter()
                known.T @ (known @ slopes).log_softmax(1).exp()
                times.append((time.perf_counter() - began) * images / rows)
            total += min(times) * EVALUATIONS * (folds * (1 - 1 / FOLDS) / at_once + 1)
    finally:
        torch.set_num_threads(threads)
    return total


def decorrelate(
    flat: NDArray[np.float32],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Features `[n, D]` with a mean of 0 and, before they are rotated to their principal axes, a deviation of 1.

    A rotation changes neither a regression nor the weight decay of its slopes, but its search takes a third of the
    steps once it knows how much the features vary along each axis.

    Returns:
        The rotated features `[n, D]`, their variances `[D]`, and the matrix that takes slopes for them to slopes for
        the features as they were `[D, D]`.
    """
    wide = flat.astype(np.float64)
    scale = wide.std(0) + 1e-6
    wide = (wide - wide.mean(0)) / scale
    variances, axes = np.linalg.eigh(wide.T @ wide / len(wide))
    return wide @ axes, variances.clip(0), axes / scale[:, None]


def cross_validate(
    known: NDArray[np.float64],
    variances: NDArray[np.float64],
    labels: NDArray[np.float64],
    weight: NDArray[np.float64],
    exclusive: bool,
    folds: NDArray[np.int64],
    held_out: Sequence[int],
    pool: Executor,
) -> list[tuple[float, float]]:
    """Fraction of the held-out images that is told right with each strength, from the strongest on.

    It ends where weaker ones only fit the training images better.
    """
    starts: dict[int, NDArray[np.float64]] = {}

    def leave_out(fold: int, strength: float) -> float:
        learn, test = folds != fold, folds == fold
        start = starts.get(fold)
        found = regress(known[learn], labels[learn], weight[learn], strength, exclusive, start, variances, ROUGH)
        starts[fold] = found
        return rate(known[test] @ found[:-1] + found[-1], labels[test], exclusive) * int(test.sum())

    scores: list[float] = []
    for strength in STRENGTHS:
        right = sum(pool.map(leave_out, held_out, repeat(strength)))
        scores.append(right / int(np.isin(folds, held_out).sum()))
        if len(scores) > 3 and max(scores[-2:]) < max(scores):
            break
    return list(zip(STRENGTHS, scores, strict=False))


def pick(values: NDArray[np.float32], pooling: str | None) -> NDArray[np.float32]:
    """The features `[n, D]` of a pooling."""
    return values.reshape(len(values), -1) if pooling in (None, "both") else values[:, POOLINGS.index(pooling)]


def divide(labels: NDArray[np.integer[Any]] | None, count: int, seed: int) -> NDArray[np.int64]:
    """A fold for each image `[n]`, of each class in turn where there are classes."""
    generator = np.random.default_rng(seed)
    folds, order = np.zeros(count, dtype=np.int64), generator.permutation(count)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    folds[order] = np.arange(count) % min(FOLDS, count)
    return folds


def regress(
    features: NDArray[np.float64],
    labels: NDArray[np.float64],
    weight: NDArray[np.float64],
    strength: float,
    exclusive: bool,
    start: NDArray[np.float64] | None = None,
    variances: NDArray[np.float64] | None = None,
    tolerance: float = 1e-8,
) -> NDArray[np.float64]:
    """Slopes and, in the last row, biases `[D + 1, K]`: least mean loss plus `strength / 2` of the slopes' squares.

    scikit-learn has the same for one label an image; this takes several labels at once, too, and starts from the
    solution for another strength.

    Args:
        features: `[n, D]`.
        labels: 0 or 1 `[n, K]`.
        weight: Of each image `[n]`.
        strength: Weight decay; biases have none.
        exclusive: Whether each image has one label (softmax), or any number of them (sigmoids).
        start: Where to begin.
        variances: Of the features `[D]`, if they are not correlated with each other; it shortens the search.
        tolerance: Relative decrease of the loss at which the search ends.
    """
    inputs = torch.from_numpy(features)
    wanted = torch.from_numpy(labels)
    weights = torch.from_numpy(weight / weight.sum())
    shape = (features.shape[1] + 1, labels.shape[1])
    # The search is for slopes times the root of how much the loss curves along them, which makes it curve alike.
    curvature = (1 - 1 / shape[1]) / shape[1] if exclusive and shape[1] > 1 else 0.1
    varying = np.ones(len(features[0])) if variances is None else variances
    units = torch.from_numpy(np.sqrt(np.append(curvature * varying + strength, curvature)))[:, None]

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        both = torch.from_numpy(flat).view(shape) / units
        logits = torch.addmm(both[-1], inputs, both[:-1])
        if exclusive:
            logarithms = logits.log_softmax(1)
            each, error = -(wanted * logarithms).sum(1), logarithms.exp() - wanted
        else:
            each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(1)
            error = logits.sigmoid() - wanted
        error = error * weights[:, None]
        gradient = torch.cat((inputs.T @ error + strength * both[:-1], error.sum(0, keepdim=True)))
        value = weights @ each + strength / 2 * both[:-1].square().sum()
        return float(value), (gradient / units).flatten().numpy()

    first = np.zeros(shape) if start is None else start * units.numpy()
    options = {"maxiter": STEPS, "gtol": 1e-6, "ftol": tolerance}
    found = minimize(loss, first.ravel(), jac=True, method="L-BFGS-B", options=options).x
    return found.reshape(shape) / units.numpy()


def rate(logits: NDArray[np.float64], labels: NDArray[np.float64], exclusive: bool) -> float:
    """Fraction of images whose class, or of labels whose presence, is told right."""
    if exclusive:
        return float((logits.argmax(1) == labels.argmax(1)).mean())
    return float(((logits > 0) == (labels > 0.5)).mean())


def nearest(
    flat: NDArray[np.float32],
    labels: NDArray[np.float64],
    folds: NDArray[np.int64],
    held_out: Sequence[int],
    counts: Sequence[int],
    exclusive: bool,
) -> dict[int, float]:
    """Fraction of the held-out images that so many nearest neighbours (by cosine) among the others tell right."""
    unit = F.normalize(torch.from_numpy(flat).float(), dim=1)
    wanted = torch.from_numpy(labels).float()
    right: dict[int, list[Tensor]] = {count: [] for count in counts}
    for fold in held_out:
        learn = torch.from_numpy(np.flatnonzero(folds != fold))
        for test in torch.from_numpy(np.flatnonzero(folds == fold)).split(1024):
            near = (unit[test] @ unit[learn].T).topk(min(max(counts), len(learn)), dim=1).indices
            known, votes = wanted[test], wanted[learn[near]]
            for count in counts:
                voted = votes[:, :count].mean(1)
                same = voted.argmax(1) == known.argmax(1)
                hit = same if exclusive else ((voted > 0.5) == (known > 0.5)).float().mean(1)
                right[count].append(hit.float())
    return {count: float(torch.cat(hits).mean()) for count, hits in right.items()}


def classifier(model: nn.Module) -> nn.Module:
    """The layer that classifies; of a model with a second head for a teacher both."""
    found = model.get_classifier()  # type: ignore[operator]
    return nn.ModuleList(found) if isinstance(found, tuple) else found


def use_head(model: nn.Module, head: FittedHead) -> nn.Module:
    """Give a model the head that was fitted to its features, in its pooling; the model is changed and returned.

    Raises:
        ValueError: The model classifies by something else than a linear layer.
    """
    set_pooling(model, head.pooling)
    found = classifier(model)
    for layer in found if isinstance(found, nn.ModuleList) else [found]:
        if not isinstance(layer, nn.Linear | nn.Conv2d) or layer.weight[0].numel() != head.weight.shape[1]:
            raise ValueError(f"The head of this {type(model).__name__} is no linear layer that could be fitted alone.")
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(head.weight).view_as(layer.weight))
            if layer.bias is not None:
                layer.bias.copy_(torch.from_numpy(head.bias))
    return model
