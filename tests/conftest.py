import os
import signal

import pytest

# Small matrices gain nothing by threads of BLAS or PyTorch, and lose much where several tests run at once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# scikit-learn skips one of its estimator checks unless this is set before scipy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

# A shell starts background jobs with SIGINT ignored, and processes inherit that: tests of Ctrl-C would wait in vain.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Two processes that begin with these files compile different kernels; the other files find them compiled.
FIRST = "kernels/test_cpu kernels/test_adjoint learn/test_training testing/test_contract video/test_separation".split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    names = {item.path: item.path.with_suffix("").as_posix() for item in items}
    place = {path: next((k for k, end in enumerate(FIRST) if name.endswith(end)), 99) for path, name in names.items()}
    items.sort(key=lambda item: place[item.path])
