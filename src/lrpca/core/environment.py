"""What a measurement depends on besides the code: the machine, its load, the versions and the date."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

PACKAGES = ("lrpca", "numpy", "scipy", "numba", "llvmlite")
# Where libraries look for their number of threads when they are loaded.
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def allowed_threads() -> int:
    """Return how many threads every library may use: the smallest number in a variable, or one for each core."""
    # OMP_NUM_THREADS may be a list, with a number for each level of nesting.
    named = [os.environ.get(name, "").partition(",")[0].strip() for name in THREAD_VARIABLES]
    return min((int(count) for count in named if count.isdecimal() and int(count) > 0), default=cores())


def hardware() -> dict[str, str | int]:
    """Describe the machine, without its name: processor, cores, caches, memory, system."""
    found: dict[str, str | int] = {"processor": _processor(), "cores": cores(), **_caches()}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    found["system"] = f"{platform.system()} {platform.machine()}"
    return found


def versions(more: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of Python, of the C library, and of the packages that compute and some `more` of them."""
    found = {"python": platform.python_version()}
    library, version = platform.libc_ver()
    if library:
        found[library] = version
    for package in (*PACKAGES, *more):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            if package == "lrpca":  # run from its sources
                found[package] = sys.modules["lrpca"].__version__
    return found


def load() -> float | None:
    """Return the load average of the last minute, read before measuring; None where the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def load_note() -> str:
    """Return a sentence on the load of the machine, made before measuring."""
    average = load()
    if average is None:
        return "The load of the machine is not known."
    return f"Load average of the last minute when the run began: {average:.2f} on {cores()} cores."


def date() -> str:
    """Return the day and the minute, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _caches() -> dict[str, str]:
    """Return the sizes of the data caches as the first core sees them, where the system tells."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level} cache"] = size
    return found
