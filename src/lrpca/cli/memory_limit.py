"""A limit on the address space of the process (``ulimit -v``), and whether there is room below it.

Without room for its buffers OpenBLAS tries again forever, deaf to signals; the compiler aborts the process; and Python
itself may hang. So whoever runs under a limit looks first.
"""

from __future__ import annotations

import mmap
import os
import sys

from lrpca.core.environment import THREAD_VARIABLES, cores

# What it takes to load the libraries and to compile, with one thread; to load PyTorch after that; and to work beside Y.
# In kB, as ulimit counts.
LIBRARIES, PYTORCH, WORK = 700_000, 700_000, 100_000
# Threads of OpenBLAS, and one of ours: stack, heap and buffer.
_EACH_CORE = 250_000


def load_within_limit() -> None:
    """Load the libraries with as many threads as there is room for, and let them take their buffers, before data do.

    Nothing is done where there is no limit.

    Raises
    ------
    MemoryError
        There is no room.
    """
    limit = _limit()
    if limit is None:
        return
    require_room(LIBRARIES, "for the libraries")
    if limit < LIBRARIES + _EACH_CORE * cores():
        for name in THREAD_VARIABLES:
            os.environ.setdefault(name, "1")
    import numba  # noqa: F401
    import numpy as np
    import scipy.linalg

    # numpy and scipy have an OpenBLAS each, which takes no buffer for a small product.
    scipy.linalg.eigh(np.eye(200) @ np.eye(200))


def require_room(needed: int, purpose: str) -> None:
    """Raise a MemoryError if a limit leaves less than that.

    Parameters
    ----------
    needed : int
        Address space in kB.
    purpose : str
        What it is needed for, for the message.
    """
    limit = _limit()
    if limit is None:
        return
    try:
        mmap.mmap(-1, 1024 * needed).close()
    except OSError:
        raise MemoryError(f"ulimit -v={limit} leaves less than {needed} kB {purpose}; raise it") from None


def _limit() -> int | None:
    """Return the limit in kB, None if there is none."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit // 1024
