"""The most memory that was in use: of the process on a processor, of the allocator on a GPU."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def reset_peak(device: torch.device) -> None:
    """Count from here on; where the system can't, the peak is that of the whole process so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _RESET.write_text("5")
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """Bytes at the peak: the process's resident memory, or what the GPU's allocator had given out.

    Resident memory counts the interpreter, the libraries and freed blocks that the allocator keeps.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if _STATUS.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), flags=re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
