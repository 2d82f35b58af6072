"""Robust principal component analysis: a low-rank matrix plus sparse outliers."""

from __future__ import annotations

import importlib
from typing import Any

from lrpca.decompose import decompose
from lrpca.decomposition import Decomposition
from lrpca.exceptions import ConvergenceWarning, DiagnosisWarning
from lrpca.schedule import Schedule

__version__ = "0.1.0"

__all__ = ["ConvergenceWarning", "Decomposition", "DiagnosisWarning", "Schedule", "__version__", "decompose"]

# Loaded when first asked for: `import lrpca` stays quick.
_ELSEWHERE = {
    "BatchDecomposition": "lrpca.batches.result",
    "RobustPCA": "lrpca.estimator",
    "decompose_batch": "lrpca.batch",
}
_MODULES = ("arena", "datasets", "demo", "files", "learn", "metrics", "plot", "report", "streaming", "testing", "video")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lrpca.{name}")
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'lrpca' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ELSEWHERE, *_MODULES])
