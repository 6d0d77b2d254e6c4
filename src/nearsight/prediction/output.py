"""Where predictions go, one after the other: to the screen, or to a file that is complete or not there."""

import csv
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from ..console import percent
from ..plots.style import abbreviate
from .values import Prediction

BAR = 20  # characters for a probability of 1
NAME = 36  # characters of a class name on the screen


class Output(Protocol):
    """Takes predictions in their order."""

    def add(self, prediction: Prediction) -> None:
        """Write what was predicted for an image."""


@contextmanager
def open_output(*, csv: Path | None, jsonl: Path | None, as_json: bool) -> Iterator[Output]:
    """The output that was asked for; without any, text on the screen."""
    if csv is not None:
        with writing(csv) as stream:
            yield CsvTable(stream)
    elif jsonl is not None:
        with writing(jsonl) as stream:
            yield JsonLines(stream)
    elif as_json:
        output = JsonArray(sys.stdout)
        yield output
        output.close()
    else:
        yield Screen(sys.stdout)


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """A stream into a file beside `path`, which takes that name when all is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class CsvTable:
    """A line for each image: its path, then each answer and its probability."""

    def __init__(self, stream: TextIO):
        self.writer = csv.writer(stream, lineterminator="\n")
        self.begun = False

    def add(self, prediction: Prediction) -> None:
        """Write a line, and the titles above the first."""
        if not self.begun:  # by then it is known how many answers there are
            numbers = range(1, len(prediction.answers) + 1)
            self.writer.writerow(["image", *(f"{title}_{n}" for n in numbers for title in ("class", "probability"))])
            self.begun = True
        pairs = ((answer.name, f"{answer.probability:.6f}") for answer in prediction.answers)
        self.writer.writerow([prediction.image, *(cell for pair in pairs for cell in pair)])


class JsonLines:
    """An object on a line for each image."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def add(self, prediction: Prediction) -> None:
        """Write a line."""
        self.stream.write(to_json(prediction) + "\n")


class JsonArray:
    """One array of objects, which grows as it goes."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.separator = "[\n"

    def add(self, prediction: Prediction) -> None:
        """Write an element."""
        self.stream.write(f"{self.separator}  {to_json(prediction)}")
        self.separator = ",\n"

    def close(self) -> None:
        """End the array."""
        self.stream.write("[]\n" if self.separator == "[\n" else "\n]\n")


class Screen:
    """For people: a line for one answer, a block with bars for several."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def add(self, prediction: Prediction) -> None:
        """Print what was predicted."""
        if len(prediction.answers) == 1:
            (answer,) = prediction.answers
            print(f"{prediction.image}: {answer.name} {percent(answer.probability)}", file=self.stream, flush=True)
            return
        names = [abbreviate(answer.name, NAME) for answer in prediction.answers]
        width = max(map(len, names))
        lines = [
            f"  {name:<{width}}  {percent(answer.probability):>7}  {bar(answer.probability)}".rstrip()
            for name, answer in zip(names, prediction.answers, strict=True)
        ]
        print(prediction.image, *lines, sep="\n", file=self.stream, flush=True)


def to_json(prediction: Prediction) -> str:
    """An object with the image and its answers."""
    answers = [{"class": answer.name, "probability": round(answer.probability, 6)} for answer in prediction.answers]
    value: dict[str, Any] = {"image": prediction.image, "answers": answers}
    return json.dumps(value, ensure_ascii=False)


def bar(probability: float) -> str:
    """A bar of eighths of a character.

    Example:
        >>> bar(0.125)
        '██▌'
    """
    eighths = round(8 * BAR * probability)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
