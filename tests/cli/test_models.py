"""What `nearsight models` prints is what the models are."""

import io

import pytest
from rich.console import Console

from nearsight.catalogue import describe_models
from nearsight.cli.models import models_table
from nearsight.models import MODELS
from nearsight.models.options import apply_options
from tools.catalogue import slot_texts, summarise

ROWS = {row.name: row for row in describe_models()}


def test_every_model_has_a_row() -> None:
    assert sorted(ROWS) == sorted(MODELS), "run `make catalogue`"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if sum(stage.depth for stage in MODELS[name].stages) > 12 else name
        for name in sorted(MODELS)
    ],
)
def test_the_recorded_row_is_the_models(name: str) -> None:
    assert ROWS[name] == summarise(name), "run `make catalogue`"


def test_stages_that_differ_are_shown_one_by_one() -> None:
    assert ROWS["lit_small"].mixer == "–/–, Global ×12/24"
    assert ROWS["pvt_tiny"].mixer == "SRA 8/4/2 ×1/2/5, Global ×8"
    assert ROWS["swin_tiny"].mixer == "Window 7 shifted ×3/6/12/24"


def test_a_mixed_model_is_described_by_its_parts() -> None:
    options = {"qkv": "life", "ffn": "localvit", "local_layers": "1-4"}
    texts = slot_texts(apply_options("deit_tiny", MODELS["deit_tiny"], options))
    assert texts["qkv"] == "Life 1·3·5 + Linear"
    assert texts["ffn"] == "Locality γ4 se + Mlp 4"


@pytest.mark.parametrize("pattern", ["lightvit", "lightvit_*", "LightViT"])
def test_a_family_is_found_by_name_and_by_pattern(pattern: str) -> None:
    assert {row.family for row in describe_models(pattern)} == {"lightvit"}


def test_a_pattern_without_a_match_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"^No model matches 'lightvt_tiny'; did you mean 'lightvit_tiny'\?"):
        describe_models("lightvt_tiny")


@pytest.mark.parametrize("width", [80, 100, 150, 200])
def test_the_table_keeps_within_the_page(width: int) -> None:
    console = Console(width=width, file=io.StringIO())
    console.print(models_table(list(ROWS.values()), width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(len(line.rstrip()) for line in lines) <= width
    assert "…" not in "".join(lines), "something was cut off"
