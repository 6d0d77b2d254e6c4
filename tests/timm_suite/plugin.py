"""Points timm's `tests/test_models.py` at Nearsight's models.

The suite asks `timm.list_models` for names while it is imported; this plugin answers first. Models with auxiliary
tokens come under the suite's token contract (its `NON_STD_FILTERS`), the others under the spatial one.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import timm

from nearsight.models import MODELS

TOKEN_PATTERN = "vit_*"  # stands in NON_STD_FILTERS and in no other list of the suite

EXCLUDED = {
    "test_model_forward_torchscript": (
        "torch.jit.script is deprecated in favour of torch.export, and its compiler refuses modules passed as "
        "arguments, NamedTuples kept as attributes (Grid) and starred shapes; tests/models/test_export.py exports "
        "the models instead"
    ),
    "test_model_forward_fx_torchscript": "for the same reasons: it scripts what torch.fx traced",
}
QUICK_MODELS = {name for name in MODELS if "nano" in name} | {
    "deit_tiny_distilled",
    "t2t_vit_7",
    "tnt_tiny",
    "pvt_tiny",
    "swinv2_tiny_life",
    "local_mlp_tiny",
    "localvit_swin",
    "lightvit_tiny",
    "lit_tiny",
    "iddwnet_tiny",
}
QUICK_TESTS = {
    "test_model_backward",
    "test_model_default_cfgs",
    "test_model_default_cfgs_non_std",
    "test_model_forward_intermediates",
    "test_model_forward_features",
    "test_model_forward_fx",
}


def list_models(
    filter: str | Sequence[str] = "",
    module: str | Sequence[str] = "",
    pretrained: bool = False,
    exclude_filters: str | Sequence[str] = "",
    name_matches_cfg: bool = False,
    include_tags: bool | None = None,
) -> list[str]:
    """Nearsight's models in the place of timm's: all, the token models, or all but these.

    `module` names timm's files that have `forward_intermediates`; all our models have it. None has weights that timm
    could download, so `pretrained` selects none.
    """
    if pretrained:
        return []
    if filter:
        return sorted(name for name, spec in MODELS.items() if spec.aux)
    spatial = TOKEN_PATTERN in exclude_filters
    return sorted(name for name, spec in MODELS.items() if not (spatial and spec.aux))


def list_pretrained(*args: Any, **kwargs: Any) -> list[str]:
    """No weights on timm's hub."""
    return []


timm.list_models, timm.list_pretrained = list_models, list_pretrained


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="the small models and the most telling tests only")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout(seconds): limit of a test; kept only where pytest-timeout is installed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that take one of our models; the others are about single models of timm."""
    quick = config.getoption("quick")
    kept, dropped = [], []
    for item in items:
        callspec = getattr(item, "callspec", None)
        model, test = callspec and callspec.params.get("model_name"), getattr(item, "originalname", item.name)
        ours = model in MODELS and test not in EXCLUDED
        chosen = not quick or (model in QUICK_MODELS and test in QUICK_TESTS)
        (kept if ours and chosen else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("excluded tests of timm's suite")
    for name, reason in EXCLUDED.items():
        terminalreporter.line(f"{name}: {reason}")
