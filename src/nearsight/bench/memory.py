"""How much memory one call takes on top of what was there before it."""

import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_memory(call: Callable[[], object], device: torch.device) -> int | None:
    """Largest number of bytes that one call holds at a time, its result included; weights and inputs are not.

    On the CPU every allocation of PyTorch is followed, also those inside kernels, compiled code and backward passes,
    so that the number is the same from call to call. What a library takes past PyTorch's allocator is not seen.

    Args:
        call: What is measured. Call it once before: the first call may fill tables that stay.
        device: Where it runs.

    Returns:
        Bytes; None on a device that does not tell.

    Example:
        >>> peak_memory(lambda: torch.ones(1000) + torch.ones(1000), torch.device("cpu"))
        12000
    """
    if device.type == "cuda":
        return peak_on_gpu(call, device)
    return peak_on_cpu(call) if device.type == "cpu" else None


def peak_on_gpu(call: Callable[[], object], device: torch.device) -> int:
    """By the statistics of the GPU's allocator."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def peak_on_cpu(call: Callable[[], object]) -> int:
    """By the sum of what was allocated and not yet freed, over time."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler reports on stderr that it began and ended
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        result = call()
    del result
    events = watched.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = [event for event in events if event.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return peak
