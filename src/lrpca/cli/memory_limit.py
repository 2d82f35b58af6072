"""Checks under a limit on the address space of the process (``ulimit -v``).

Without memory for its buffers OpenBLAS tries again forever and ignores signals; the compiler aborts the process; and
Python itself may hang. So the memory is checked first.
"""

from __future__ import annotations

import mmap
import os
import sys

from lrpca.core.environment import THREAD_VARIABLES, cores

# Memory to load the libraries and to compile, with one thread; to load PyTorch after that; and to work beside Y. In kB,
# like ulimit.
LIBRARIES, PYTORCH, WORK = 700_000, 700_000, 100_000
# Stack, heap and buffer of threads of OpenBLAS, and of one of ours.
_EACH_CORE = 250_000


def load_within_limit() -> None:
    """Under a limit, load the libraries and their buffers before the data, with as many threads as memory allows."""
    limit = _limit()
    if limit is None:
        return
    require_memory(LIBRARIES, "for the libraries")
    if limit < LIBRARIES + _EACH_CORE * cores():
        for name in THREAD_VARIABLES:
            os.environ.setdefault(name, "1")
    import numba  # noqa: F401
    import numpy as np
    import scipy.linalg

    # numpy and scipy have an OpenBLAS each, which takes no buffer for a small product.
    scipy.linalg.eigh(np.eye(200) @ np.eye(200))


def require_memory(needed: int, purpose: str) -> None:
    """Raise MemoryError if a limit leaves less than this many kB; the message names the purpose."""
    limit = _limit()
    if limit is None:
        return
    try:
        mmap.mmap(-1, 1024 * needed).close()
    except OSError:
        raise MemoryError(f"ulimit -v={limit} leaves less than {needed} kB {purpose}; raise it") from None


def _limit() -> int | None:
    """Return the limit in kB, or None."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit // 1024
