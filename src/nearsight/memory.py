"""How much memory there is, so that what does not fit is refused before it is taken."""

from contextlib import suppress
from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be had, as far as the system tells: of the machine, or of what contains this process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    free = []
    with suppress(OSError, ValueError, StopIteration):
        rows = Path("/proc/meminfo").read_text().splitlines()
        free.append(next(int(row.split()[1]) for row in rows if row.startswith("MemAvailable")) * 1024)
    with suppress(OSError, ValueError):  # "max" where a container has no limit
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(free, default=None)


def is_memory_error(error: BaseException) -> bool:
    """Whether something failed because there is not enough memory.

    Example:
        >>> is_memory_error(MemoryError()), is_memory_error(RuntimeError("shapes differ"))
        (True, False)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)  # the CPU's allocator has no error of its own
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text)
