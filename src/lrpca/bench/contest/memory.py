"""Memory of a process: its own peak, from inside, and what another one holds, from outside."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

_OWN = Path("/proc/self/status")


def begin_peak() -> int:
    """Return the resident memory in bytes, and let the peak begin there where the system can.

    Memory that is free but still held is given back first, so that what follows does not find it.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)
    clear = Path("/proc/self/clear_refs")
    try:
        clear.write_text("5", encoding="ascii")
    except OSError:  # another system, or not allowed
        return peak()
    return _status(_OWN, "VmRSS")


def peak() -> int:
    """Return the most resident memory so far, in bytes; 0 where the system does not tell."""
    if _OWN.exists():
        return _status(_OWN, "VmHWM")
    if sys.platform == "win32":
        return 0
    import resource

    return (1 if sys.platform == "darwin" else 1024) * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def resident(process: int) -> int:
    """Return the memory that another process holds, in bytes; 0 if it has ended or the system does not tell."""
    if _OWN.exists():
        return _status(Path(f"/proc/{process}/status"), "VmRSS")
    if sys.platform == "win32":
        return 0
    answer = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, check=False)
    return 1024 * int(answer.stdout.strip() or 0)


def _status(file: Path, name: str) -> int:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    return 0
