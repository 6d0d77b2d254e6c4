"""Nearsight: vision transformers that look close first.

Example:
    >>> import nearsight
    >>> model = nearsight.create_model("lit_nano", num_classes=10)
    >>> nearsight.list_models("lit_*")
    ['lit_base', 'lit_medium', 'lit_nano', 'lit_small', 'lit_tiny']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import explanation, models, parts
    from .app.serve import launch_app
    from .benchmarking.measure import bench
    from .calibration import calibrate
    from .catalogue import describe_models
    from .checkpoints import load_official
    from .checkpoints.pretrained import get_pretrained, list_pretrained
    from .comparison.compare import compare
    from .conversion import convert
    from .data import open_data
    from .data.sources.synthetic import make_shapes
    from .deployment.export import export
    from .diagnosis import doctor
    from .embedding import embed
    from .evaluation import evaluate
    from .explanation.faithfulness import score
    from .explanation.methods import explain
    from .explanation.probing import probe
    from .factory import create_model, list_models
    from .label_issues import check_data
    from .lattice import Grid
    from .models.fold import fold
    from .prediction import predict
    from .reproduction.verdicts import reproduce
    from .retrofit.localize import localize
    from .runs.predictor import load, save
    from .searching.search import search
    from .serving import serve
    from .sharing import push
    from .training import load_recipe, run_training
    from .training.distill import distill
    from .training.train import train

__version__ = "0.2.0"

__all__ = [
    "Grid",
    "__version__",
    "bench",
    "calibrate",
    "check_data",
    "compare",
    "convert",
    "create_model",
    "describe_models",
    "distill",
    "doctor",
    "embed",
    "evaluate",
    "explain",
    "explanation",
    "export",
    "fold",
    "get_pretrained",
    "launch_app",
    "list_models",
    "list_pretrained",
    "load",
    "load_official",
    "load_recipe",
    "localize",
    "make_shapes",
    "models",
    "open_data",
    "parts",
    "predict",
    "probe",
    "push",
    "reproduce",
    "run_training",
    "save",
    "score",
    "search",
    "serve",
    "train",
]

# Where a public name lives. Modules are imported on first use, so that `import nearsight` and the command line start
# without loading torch.
_HOME = {
    "Grid": "lattice",
    "bench": "benchmarking.measure",
    "calibrate": "calibration",
    "check_data": "label_issues",
    "compare": "comparison.compare",
    "convert": "conversion",
    "create_model": "factory",
    "describe_models": "catalogue",
    "distill": "training.distill",
    "doctor": "diagnosis",
    "embed": "embedding",
    "evaluate": "evaluation",
    "explain": "explanation.methods",
    "export": "deployment.export",
    "fold": "models.fold",
    "get_pretrained": "checkpoints.pretrained",
    "launch_app": "app.serve",
    "list_models": "factory",
    "list_pretrained": "checkpoints.pretrained",
    "load": "runs.predictor",
    "load_official": "checkpoints",
    "load_recipe": "training",
    "localize": "retrofit",
    "make_shapes": "data.sources.synthetic",
    "open_data": "data",
    "predict": "prediction",
    "run_training": "training",
    "probe": "explanation.probing",
    "push": "sharing",
    "reproduce": "reproduction.verdicts",
    "save": "runs.predictor",
    "score": "explanation.faithfulness",
    "search": "searching.search",
    "serve": "serving",
    "train": "training.train",
}
_SUBMODULES = ("explanation", "models", "parts")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
