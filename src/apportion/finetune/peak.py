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
    found = _status("VmHWM")
    if found is not None:
        return found
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def held_bytes(device: torch.device) -> int:
    """Bytes in use now, counted as `peak_bytes` counts them; 0 where the system doesn't say."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _status("VmRSS") or 0


def _status(name: str) -> int | None:
    if not _STATUS.exists():
        return None
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), flags=re.MULTILINE)
    return None if found is None else int(found[1]) * 1024
