"""Which models a page offers."""

from ..explain.subjects import open_model
from ..factory import list_models

FIRST = ("swin_nano", "iddwnet_nano", "lit_nano", "deit_nano", "lightvit_nano")


def offered(given: list[str]) -> list[str]:
    """What was asked for, then the nano models, which need no training to be looked into.

    Args:
        given: Runs, weight files and names of models; each is opened once, so that a wrong one is told at once.

    Example:
        >>> offered([])[:2], "localvit_nano" in offered(["swin_nano"])
        (['swin_nano', 'iddwnet_nano'], True)
    """
    for source in given:
        open_model(source)
    nano = [*FIRST, *(name for name in list_models("*_nano*") if name not in FIRST)]
    return list(dict.fromkeys((*given, *nano)))
