"""Measure models beside each other: latency, memory, share of the machine's peak, growth with the image."""

from .measure import bench
from .results import Bench, Setting
from .subjects import Refused, Subject, open_subject

__all__ = ["Bench", "Refused", "Setting", "Subject", "bench", "open_subject"]
