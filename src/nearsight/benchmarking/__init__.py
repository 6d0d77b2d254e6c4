"""Measure models beside each other: latency, memory, fraction of the machine's peak, growth with the image."""

from .measure import bench
from .results import Bench

__all__ = ["Bench", "bench"]
