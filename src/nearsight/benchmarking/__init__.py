"""Measure models beside each other: latency, memory, share of the machine's peak, growth with the image."""

from .measure import bench
from .models import Refused, Subject, open_subject
from .results import Bench, Setting

__all__ = ["Bench", "Refused", "Setting", "Subject", "bench", "open_subject"]
