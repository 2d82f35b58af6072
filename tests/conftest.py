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

# Files that compile most and take longest. Two processes that begin with these compile different kernels, and the
# others find them compiled; short files are left for the end.
FIRST = (
    "kernels/test_cpu.py",
    "kernels/test_adjoint.py",
    "learn/test_training.py",
    "testing/test_contract.py",
    "video/test_separation.py",
    "solvers/test_methods.py",
    "matrices/test_cluster.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files = {path: path.as_posix() for path in {item.path for item in items}}
    place = {path: next((k for k, end in enumerate(FIRST) if name.endswith(end)), 99) for path, name in files.items()}
    items.sort(key=lambda item: place[item.path])
