"""A `.pt2` file from elsewhere runs no code of its own."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from bundles import bundle

from nearsight.runs.bundle import BundleError
from nearsight.runs.untrusted import open_program

EXAMPLES, GRAPH = "data/sample_inputs/model.pt", "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


class Evil:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def rewrite(target: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    """A copy of a good program with one of its files changed."""
    with zipfile.ZipFile(bundle("pt2") / "model.pt2") as old, zipfile.ZipFile(target, "w") as new:
        changed = 0
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.partition("/")[2] == name:
                content, changed = change(content), changed + 1
            new.writestr(entry.filename, content)
        assert changed == 1
    return target


def test_an_unchanged_copy_opens(tmp_path: Path) -> None:
    model = open_program(rewrite(tmp_path / "copy.pt2", GRAPH, lambda content: content))
    (logits,) = model(torch.zeros(3, 3, 16, 16))
    assert logits.shape == (3, 10)


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def poison(content: bytes) -> bytes:
        torch.save(Evil(mark), tmp_path / "evil.pt", pickle_module=pickle)
        return (tmp_path / "evil.pt").read_bytes()

    file = rewrite(tmp_path / "bad.pt2", EXAMPLES, poison)
    with pytest.raises(BundleError, match=r"could run code; it is not opened"):
        open_program(file)
    assert not mark.exists()
    with suppress(AssertionError):  # it notices too late that there are no example inputs
        torch.export.load(file)
    assert mark.exists()  # it would have been run


def change_json(change: Callable[[dict], None]) -> Callable[[bytes], bytes]:
    def apply(content: bytes) -> bytes:
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode()

    return apply


def first_node(program: dict) -> dict:
    return program["graph_module"]["graph"]["nodes"][0]


@pytest.mark.parametrize("target", ["torch.load", "torch.hub.load", "_operator.methodcaller", "#x:y", "os.system"])
def test_operators_of_tensors_only(target: str, tmp_path: Path) -> None:
    change = change_json(lambda program: first_node(program).update(target=target))
    with pytest.raises(BundleError, match=r"holds the operator"):
        open_program(rewrite(tmp_path / "bad.pt2", GRAPH, change))


@pytest.mark.parametrize("text", ["__import__('os').mkdir('x')", "s0.func", "s0[0]", "Lambda(s0, s0)", "'a'", "exec"])
def test_sizes_are_arithmetic(text: str, tmp_path: Path) -> None:
    change = change_json(lambda program: first_node(program).update(evil={"expr_str": text}))
    with pytest.raises(BundleError, match=r"holds the size"):
        open_program(rewrite(tmp_path / "bad.pt2", GRAPH, change))


def test_pickled_weights_and_other_files_are_refused(tmp_path: Path) -> None:
    def pickled(config: dict) -> None:
        next(iter(config["config"].values()))["use_pickle"] = True

    with pytest.raises(BundleError, match=r"holds the pickled value"):
        open_program(rewrite(tmp_path / "bad.pt2", WEIGHTS, change_json(pickled)))
    file = rewrite(tmp_path / "more.pt2", WEIGHTS, lambda content: content)
    with zipfile.ZipFile(file, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/data/aotinductor/model/model.so", b"machine code")
    with pytest.raises(BundleError, match=r"holds the file 'data/aotinductor/model/model\.so'"):
        open_program(file)


def test_guards_are_not_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def plant(program: dict) -> None:
        program["guards_code"] = [f"__import__('os').mkdir({str(mark)!r}) is None"]

    model = open_program(rewrite(tmp_path / "bad.pt2", GRAPH, change_json(plant)))
    model(torch.zeros(2, 3, 16, 16))
    assert not mark.exists()
