"""The answer in words: which model is best, how sure that is, and whether it is worth its cost."""

from collections.abc import Sequence

from ..interval import Interval
from .results import Difference, ModelResult, Results

CHEAPER = 0.9  # share of the time from which on a model counts as cheaper
WORTH_SAYING = 1.1
NAMED = 3  # models up to which a sentence names them all


def verdict(results: Results) -> list[str]:
    """Sentences, the most important first."""
    ranked = results.ranked
    if not ranked:
        return ["No run finished, so there is nothing to compare."]
    sentences = [headline(ranked, results), *against_baseline(ranked, results), *worth(ranked, results)]
    return [*sentences, *cautions(results)]


def headline(ranked: Sequence[ModelResult], results: Results) -> str:
    """Which model is best, and whether that can be told from chance."""
    best, ties = ranked[0], tied(ranked)
    reached = f"{percent(best.score)} of the {results.split} images right"
    if results.metric != "accuracy":
        reached = f"{percent(best.score)} {results.metric} on the {results.split} images"
    if len(ranked) == 1:
        return f"{best.label} gets {reached}."
    if not ties:
        gap = points(abs(ranked[1].behind_best.mean))  # type: ignore[union-attr]
        if best.convnet:
            return f"The ConvNet wins: {best.label} gets {reached}, {gap} more than the next, {ranked[1].label}."
        return f"{best.label} is best: it gets {reached}, {gap} more than the next, {ranked[1].label}."
    if len(ties) == len(ranked) - 1:
        last = ranked[-1]
        return (
            f"No difference shown: the models lie between {share(last)} ({last.label}) and {share(best)} "
            f"({best.label}), no further apart than chance may put them."
        )
    names = enumeration([model.label for model in ties]) if len(ties) <= NAMED else f"{len(ties)} others"
    return f"{best.label} is ahead with {reached}, but {names} can't be told apart from it."


def against_baseline(ranked: Sequence[ModelResult], results: Results) -> list[str]:
    """How the best model stands to the baseline."""
    best, baseline = ranked[0], results.model(results.baseline)
    kind = "the ConvNet" if baseline.convnet else "the baseline"
    if baseline.score is None:
        return [f"No run of {kind} {baseline.label} finished, so nothing could be tested against it."]
    if best is baseline:
        others = [model for model in ranked[1:] if model.difference and model.difference.verdict == "worse"]
        if baseline.convnet or not others:
            return []
        return [f"It is the baseline itself: {len(others)} of the {len(ranked) - 1} others are worse."]
    if best.difference is None:
        return []
    said = f"{best.label} is {spelled(best.difference, f'{kind} {baseline.label}')}"
    shown = best.difference.verdict != "no difference shown"
    return [f"{said}." if shown else f"{said}, which shows no difference."]


def worth(ranked: Sequence[ModelResult], results: Results) -> list[str]:
    """What the best model costs beside the baseline, and whether a cheaper one does as well."""
    best, baseline = ranked[0], results.model(results.baseline)
    cheap = cheapest_tie(ranked)
    if cheap is not None and cheap.latency and best.latency:
        ratio = cheap.latency.milliseconds.value / best.latency.milliseconds.value
        apart = f"{cheap.label}, which can't be told apart from {best.label},"
        return [f"{apart} takes only {ratio:.2g} × as long for an image."]
    if best is baseline or not (best.latency and baseline.latency and best.seconds and baseline.seconds):
        return []
    image = best.latency.milliseconds.value / baseline.latency.milliseconds.value
    training = best.seconds / baseline.seconds
    costs = f"{times(image)} for an image and {times(training)} to train"
    return [f"{best.label} takes {costs}, compared with {baseline.label}."]


def cautions(results: Results) -> list[str]:
    """What the reader must know to trust the rest."""
    said = []
    if len(results.seeds) == 1:
        said.append("Only one seed was trained: how much training varies is unknown, and the intervals leave it out.")
    if results.split == "val":
        said.append(
            "There are no test images: the models are judged by the validation images, which have also chosen the best "
            "epoch of each run, so all of them look a little better than they are."
        )
    if results.failures:
        runs = sum(len(model.runs) for model in results.models)
        said.append(f"{len(results.failures)} of {runs} runs failed and are not in the figures.")
    if results.suggestion:
        said.append(f"No ConvNet was among the models; add {results.suggestion} for an honest comparison.")
    return said


def tied(ranked: Sequence[ModelResult]) -> list[ModelResult]:
    """Models that can't be told apart from the best."""
    return [m for m in ranked[1:] if m.behind_best is None or m.behind_best.verdict == "no difference shown"]


def cheapest_tie(ranked: Sequence[ModelResult]) -> ModelResult | None:
    """The fastest of the models that can't be told apart from the best, if it is clearly faster."""
    best = ranked[0]
    timed = [model for model in tied(ranked) if model.latency]
    if best.latency is None or not timed:
        return None
    fastest = min(timed, key=lambda model: model.latency.milliseconds.value)  # type: ignore[union-attr]
    ratio = fastest.latency.milliseconds.value / best.latency.milliseconds.value  # type: ignore[union-attr]
    return fastest if ratio < CHEAPER else None


def percent(value: Interval | None) -> str:
    """`61.3 % ± 1.1`, on one line."""
    assert value is not None
    return f"{100 * value.value:.1f} % ± {100 * value.half_width:.1f}".replace(" ", "\N{NO-BREAK SPACE}")


def share(model: ModelResult) -> str:
    """`61.3 %`, on one line."""
    assert model.score is not None
    return f"{100 * model.score.value:.1f}\N{NO-BREAK SPACE}%"


def points(difference: float) -> str:
    """`12.6 points`."""
    return f"{100 * difference:.1f} points"


def spelled(difference: Difference, other: str) -> str:
    """`12.6 points above resnet18 (95 % interval +10.2 to +15.0, p < 0.001)`; numbers stay with their signs."""
    place = "above" if difference.mean >= 0 else "below"
    interval = f"95\N{NO-BREAK SPACE}% interval {signed(difference.low)} to {signed(difference.high)}"
    p = probability(difference.p).replace(" ", "\N{NO-BREAK SPACE}")
    return f"{points(abs(difference.mean))} {place} {other} ({interval}, {p})"


def signed(difference: float) -> str:
    """A difference in points with its sign: `+1.2`, `−0.4`."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def probability(p: float) -> str:
    """`p = 0.012`, or `p < 0.001`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.0995 else f"p = {p:.2f}"


def times(ratio: float) -> str:
    """A ratio of times in words."""
    if 1 / WORTH_SAYING < ratio < WORTH_SAYING:
        return "about as long"
    return f"{ratio:.2g} × as long"


def enumeration(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`.

    Example:
        >>> enumeration(["a", "b", "c"])
        'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
