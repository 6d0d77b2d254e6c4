"""Settings of all tests."""

import logging

import torch

# Tests work on tensors so small that threads only wait for each other, all the more in parallel workers.
torch.set_num_threads(1)

# PyTorch offers a record of every step of an export to whoever listens; pytest does, and an export takes twice as long.
trace = logging.getLogger(f"{torch.__name__}.__trace")
trace.handlers.clear()
trace.propagate = False
