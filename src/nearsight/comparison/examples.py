"""Where models disagree: images that one mostly gets right and another mostly wrong, to look at."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..data import BadImage, Split
from .predictions import Answers
from .results import Answer, Disagreement, Example

SHOWN = 8  # examples of each sort
SIDE = 96  # of a picture, in pixels


def find_disagreements(
    answers: Answers, first: str, second: str, split: Split, classes: Sequence[str]
) -> list[Disagreement]:
    """Images that tell two models apart, in both directions."""
    pairs = ((first, second), (second, first))
    return [disagreement(answers, right, wrong, split, classes) for right, wrong in pairs]


def disagreement(answers: Answers, right: str, wrong: str, split: Split, classes: Sequence[str]) -> Disagreement:
    """Images that most seeds of one model get right and most of another wrong; the clearest first."""
    good, bad = answers.worth(right), answers.worth(wrong)
    clear = np.flatnonzero((good > 0.5) & (bad < 0.5))
    clear = clear[np.argsort(bad[clear] - good[clear], kind="stable")]
    mostly = np.stack([answers.worth(label) > 0.5 for label in answers.labels_done()]).sum(axis=0)
    truths = true_classes(answers)
    examples = []
    for place in spread_over_classes(clear, truths)[: 2 * SHOWN]:
        index = int(answers.indices[place])
        try:
            picture = encode(split.read(index, SIDE))
        except BadImage:
            continue
        said = [answer_of(answers, label, int(place), classes) for label in (right, wrong)]
        truth = classes[truths[place]]
        examples.append(
            Example(name=split.name(index), truth=truth, picture=picture, answers=said, models_right=int(mostly[place]))
        )
    return Disagreement(right=right, wrong=wrong, images=len(clear), examples=examples[:SHOWN])


def spread_over_classes(places: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places in turns over the classes, so that one class does not fill the page."""
    seen: dict[int, int] = {}
    turns = []
    for place in places:
        label = int(labels[place])
        seen[label] = seen.get(label, 0) + 1
        turns.append(seen[label])
    return places[np.argsort(turns, kind="stable")]


def true_classes(answers: Answers) -> NDArray[np.int64]:
    """True class numbers of the images `[n]`."""
    one = next(run for seeds in answers.runs.values() for run in seeds.values())
    assert one.classes is not None
    return one.classes[1]


def answer_of(answers: Answers, label: str, place: int, classes: Sequence[str]) -> Answer:
    """What a model mostly says of an image."""
    pairs = [run.classes[:, place] for run in answers.runs[label].values() if run.classes is not None]
    given, truths = np.stack(pairs, axis=1)
    said = int(np.bincount(given).argmax())
    return Answer(label=label, answer=classes[said], right=int((given == truths).sum()), seeds=len(given))


def encode(image: Image.Image) -> str:
    """A small PNG of an image, as base64; small images stay as they are."""
    image = image.convert("RGB")
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")
