"""The doctor sees what is wrong with a fast path, and says all in a line."""

import json
from collections.abc import Callable

import pytest
import torch

import nearsight
from nearsight import diagnosis


def test_every_fast_path_is_well_here(type_in: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = type_in("doctor", "--device", "cpu", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert all(check["error"] < 1e-5 for check in found["checks"])
    assert found["versions"]["torch"] == torch.__version__.partition("+")[0] or found["versions"]["torch"]
    assert "\n" not in found["line"] and found["line"].endswith("problems: none")


def test_a_path_that_computes_something_else_is_found(
    monkeypatch: pytest.MonkeyPatch, type_in: Callable[..., tuple[int, str, str]]
) -> None:
    right = diagnosis.offset_products
    monkeypatch.setattr(diagnosis, "offset_products", lambda *given: right(*given) * 1.001)

    def fails(*given: object) -> None:
        raise RuntimeError("no such operator on this device")

    monkeypatch.setattr(diagnosis, "convolve_predicted", fails)
    found = nearsight.doctor("cpu")
    assert [check.name for check in found.problems] == ["offset_products", "convolve_predicted"]
    assert "differs by 1e-03" in str(found.problems[0].problem).replace("1.0e-03", "1e-03")
    assert "no such operator" in found.line
    code, out, _ = type_in("doctor", "--device", "cpu")
    assert code == 1 and "offset_products: differs by" in out


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="There is no device cuda:77 here"):
        nearsight.doctor("cuda:77")
