"""`nearsight probe`: names, refusals, tables and pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from nearsight.cli.probe import probe as command
from nearsight.explanation.probing import open_probed, probe
from nearsight.explanation.probing.figures import EDGES, NODES, MeasuredLayer, holds, measure_nodes
from nearsight.explanation.probing.open import parse_layer

APP = typer.Typer()
APP.command()(command)


def run(*arguments: str):
    return CliRunner().invoke(APP, list(arguments))


def test_it_predicts_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    outcome = run("torch:Conv2d(8,8,3,padding=1,groups=8)", "--size", "10x12")
    assert outcome.exit_code == 0, outcome.output
    assert "8 channels on 10×12" in outcome.stdout
    assert "sparse: each output is connected to 3×3 positions" in outcome.stdout
    assert "any shift of the input shifts the output alike" in outcome.stdout


def test_json_is_pure() -> None:
    outcome = run("depthwise", "window", "--bare", "--json")
    probed = json.loads(outcome.stdout)["probed"]
    assert [one["name"] for one in probed] == ["depthwise", "window"]
    assert probed[1]["properties"] == {
        "sparse_positions_nonlocal": True,
        "sparse_positions_full": False,
        "sparse_channels": True,
        "share_positions": False,
        "share_channels": True,
        "dynamic": True,
    }
    assert probed[1]["channel_groups"] == 3 and probed[1]["shifts"] == [7, 7]


def test_tables_agree_and_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    outcome = run("--tables", "--draw", str(tmp_path / "pictures"))
    assert outcome.exit_code == 0, outcome.output
    assert "9 of 9 layers come out as printed." in outcome.stdout
    first = outcome.stdout.split("Table 1, measured")[1].split("Table 7, measured")[0]
    assert [line.strip().split("  ")[0] for line in first.splitlines() if "agrees" in line] == [
        *("Local MLP", "Local attention", "DW-Conv.", "D-DW-Conv.", "Conv."),
    ]
    assert "In the plain Jacobian Local attention, D-DW-Conv., Attention also" in " ".join(outcome.stdout.split())
    names = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert names == ["connections.png", "relations.png"]
    for name in names:
        with Image.open(tmp_path / "pictures" / name) as picture:
            assert picture.width > 1000 and len(np.unique(np.asarray(picture.convert("L")))) > 100


def test_a_layer_is_drawn(tmp_path: Path) -> None:
    outcome = run("torch:Conv2d(4,4,3,padding=1)", "--size", "8", "--draw", str(tmp_path), "--json")
    assert json.loads(outcome.stdout)["probed"][0]["field"] == [3, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["01-torch-Conv2d-4-4-3-padding-1.png"]


def test_the_relation_graph_is_measured_as_the_paper_draws_it() -> None:
    measured = measure_nodes()
    assert set(measured) == set(NODES)
    assert [edge for edge in EDGES if not holds(edge, measured)] == []
    assert measured["MLP"].rank == 1 and measured["LR MLP"].rank == 0.25
    assert measured["MS conv."].rank == (64 + 16 + 4 + 1) / 256 < measured["Conv."].rank  # equation 19
    swapped = measured | {"Conv.": measured["MLP"], "ViT": measured["Sep. MLP"]}
    wrong = {(edge.start, edge.end) for edge in EDGES if not holds(edge, swapped)}
    assert {("MLP", "Conv."), ("Sep. MLP", "ViT")} <= wrong
    assert isinstance(measured["PVT"], MeasuredLayer) and measured["PVT"].rank < measured["ViT"].rank


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("windo", "did you mean 'window'?"),
        ("swin_nano.stages.1.blocks.0.mixr", "did you mean stages.1.blocks.0.mixer?"),
        ("swin_nano.stages", "is not called when the model runs"),
        ("depthwise:kernl=5", "did you mean kernel?"),
        ("none", "The part 'none' is nothing"),
        ("torch:Conv2d", "write its arguments too"),
        ("torch:Conv2d(1,", "is no layer"),
        ("torch:Conv3d(1, 1, 1)", "did you mean Conv"),
        ("torch:Conv2d(4, 4, 3, groups=3)", "can't be made"),
        ("torch:Conv2d(4, 4, kernel)", "only numbers, texts"),
        ("torch:Linear(10**6, 4)", "only numbers, texts"),
        ("torch:Linear(100000, 100000)", "are the most"),
        ("/no/such/run", "no part, model or file"),
    ],
)
def test_refusals_say_what_to_do(text: str, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        open_probed(text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch /tmp/owned')",
        "Conv2d(__import__('os').getpid(), 1, 1)",
        "Conv2d(*open('/etc/passwd').read())",
        "Conv2d(**{'in_channels': 1})",
        "Sequential((lambda: 1)())",
        "Module()",
        "Conv2d.__init__(1, 1, 1)",
        "(" * 5000,
    ],
)
def test_a_text_is_never_run(text: str) -> None:
    with pytest.raises(ValueError, match=r"^torch:"):
        parse_layer(text)


def test_layers_inside_layers() -> None:
    layer = parse_layer("Sequential(Conv2d(4, 8, (3, 1), padding=(1, 0)), GELU())")
    assert isinstance(layer, nn.Sequential) and layer[0].kernel_size == (3, 1)


def test_nothing_to_probe_and_a_file_for_a_folder(tmp_path: Path) -> None:
    assert "or give --tables" in str(run().exception)
    file = tmp_path / "a"
    file.write_text("")
    assert "is a file; give the name of a folder" in str(run("window", "--draw", str(file)).exception)
    assert "is no size" in str(run("window", "--size", "big").exception)


def test_a_large_map_is_probed() -> None:
    """56×56 positions of 96 channels: chosen rows, since the whole Jacobian of 300,000 × 300,000 fits nowhere."""
    found = probe(open_probed("swin_tiny.stages.0.blocks.0.mixer", bare=True))
    assert found.source == (96, 56, 56, 0) and found.field == (7, 7) and found.channel_groups == 3
