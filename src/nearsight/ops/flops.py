"""Where an operation reports multiply-adds that no matrix product and no convolution shows to a counter."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LISTENERS: list[Callable[[int], None]] = []


def report_macs(multiply_adds: int) -> None:
    """Report multiply-adds that were made element by element; costs nothing while nobody listens."""
    for listener in _LISTENERS:
        listener(multiply_adds)


@contextmanager
def macs_hook(listener: Callable[[int], None]) -> Iterator[None]:
    """Give `listener` every report made inside the block."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)
