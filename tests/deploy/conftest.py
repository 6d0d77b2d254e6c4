"""Lets the tests of this folder import the models that they share."""

import logging
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

# PyTorch offers a record of every step of an export to whoever listens; pytest does, and an export takes twice as long.
trace = logging.getLogger(f"{torch.__name__}.__trace")
trace.handlers.clear()
trace.propagate = False
