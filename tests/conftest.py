"""Settings of all tests."""

import torch

# Tests work on tensors so small that threads only wait for each other, all the more in parallel workers.
torch.set_num_threads(1)
