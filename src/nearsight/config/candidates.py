"""What `--models` means: names of models with options, such as `deit_nano,both=deit_nano:qkv=life:ffn=localvit`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# Of a recipe's model; the rest goes to the model's maker.
OF_CHOICE = ("weights", "img_size", "drop", "drop_path", "localize")
OF_LOCALIZE = ("ffn", "qkv", "mixer", "merge", "layers", "preserve", "start")  # of models of timm
BRACKETS = {"[": 1, "{": 1, "(": 1, "]": -1, "}": -1, ")": -1}


@dataclass(frozen=True)
class Candidate:
    """A model that is compared.

    Attributes:
        label: What to call it.
        name: Its name, ours or timm's.
        options: YAML text of its options, by name.
    """

    label: str
    name: str
    options: dict[str, str] = field(default_factory=dict)

    def settings(self) -> list[str]:
        """What to change in a recipe, as `KEY=VALUE`.

        timm's models get their patch size like any option of theirs, and parts by localizing them.
        """
        ours = is_ours(self.name)
        of_choice = {*OF_CHOICE, "patch_size"} if ours else OF_CHOICE
        sections = dict.fromkeys(of_choice, "model") | ({} if ours else dict.fromkeys(OF_LOCALIZE, "model.localize"))
        options = {key: text for key, text in self.options.items() if key != "recipe"}
        return [f"{sections.get(key, 'model.options')}.{key}={text}" for key, text in options.items()]

    @property
    def recipe(self) -> str | None:
        """The recipe of this model alone; None for that of all."""
        return self.options.get("recipe")

    @property
    def slug(self) -> str:
        """The label as the name of a folder."""
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", self.label).strip("-")

    def __str__(self) -> str:
        options = "".join(f":{key}={text}" for key, text in self.options.items())
        return f"{self.name}{options}"


def is_ours(name: str) -> bool:
    """Whether a model is built from our parts: one of our names, or the file of a description."""
    from ..models import MODELS
    from ..models.spec import is_spec_file

    return name in MODELS or is_spec_file(name)


def parse_candidates(text: str) -> list[Candidate]:
    """The models of a list with commas.

    A model is written `NAME`, with options `NAME:KEY=VALUE:KEY=VALUE`, or `LABEL=NAME:...` to give it a short name.
    Commas and colons inside brackets belong to a value.

    Example:
        >>> parse_candidates("deit_nano,one=deit_nano:qkv=life:kernels=[1,3]")[1]
        Candidate(label='one', name='deit_nano', options={'qkv': 'life', 'kernels': '[1,3]'})
    """
    if not text.strip():
        raise ValueError("No model was named; give --models, such as --models deit_nano,localvit_nano,resnet18.")
    candidates = [parse_candidate(part.strip()) for part in split_outside(text, ",")]
    seen: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.slug in seen:
            raise ValueError(
                f"Two models are called {candidate.label!r}; give one of them another name: LABEL={candidate}."
            )
        seen[candidate.slug] = candidate
    return candidates


def parse_candidate(text: str) -> Candidate:
    """One model: `[LABEL=]NAME[:KEY=VALUE]...`."""
    head, *rest = split_outside(text, ":")
    label, equals, name = head.rpartition("=")
    name = name.strip()
    if not name or (equals and not LABEL.fullmatch(label)):
        raise ValueError(
            f"{text!r} is not a model; write NAME, NAME:KEY=VALUE:..., or LABEL=NAME:... with a label of letters, "
            "digits and . _ + -."
        )
    options: dict[str, str] = {}
    for part in rest:
        key, equals_sign, value = (piece.strip() for piece in part.partition("="))
        if not equals_sign or not key.isidentifier() or not value or key in options:
            raise ValueError(f"{part!r} in {text!r} is not an option; write KEY=VALUE once, such as qkv=life.")
        options[key] = value
    plain = name.removeprefix("timm/")
    short = Path(plain).stem if plain.endswith(".json") else plain
    return Candidate(label or short + "".join(f":{key}={value}" for key, value in options.items()), plain, options)


def split_outside(text: str, sign: str) -> list[str]:
    """The pieces between signs that stand outside all brackets."""

    def commas() -> Iterator[int]:
        depth = 0
        for index, letter in enumerate(text):
            depth += BRACKETS.get(letter, 0)
            if letter == sign and depth == 0:
                yield index

    cuts = [-1, *commas(), len(text)]
    return [text[start + 1 : end] for start, end in pairwise(cuts)]


def with_baseline(candidates: list[Candidate], baseline: str | None) -> tuple[list[Candidate], str | None]:
    """The models and the label of the baseline; one that is not among them is added.

    Example:
        >>> candidates, label = with_baseline(parse_candidates("deit_nano"), "resnet18")
        >>> [candidate.label for candidate in candidates], label
        (['deit_nano', 'resnet18'], 'resnet18')
    """
    if baseline is None or baseline in [candidate.label for candidate in candidates]:
        return candidates, baseline
    added = parse_candidate(baseline)
    if added.label in [candidate.label for candidate in candidates]:
        return candidates, added.label
    return [*candidates, added], added.label
