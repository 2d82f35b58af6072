"""Robust principal component analysis: a low-rank matrix plus sparse outliers."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lrpca.decompose import decompose
    from lrpca.decomposition.result import Decomposition
    from lrpca.exceptions import ConvergenceWarning, DiagnosisWarning
    from lrpca.schedule import Schedule

__version__ = "0.1.0"

__all__ = ["ConvergenceWarning", "Decomposition", "DiagnosisWarning", "Schedule", "__version__", "decompose"]

# Loaded when first asked for: `import lrpca` stays quick, and the command can see to Ctrl-C and to the number of
# threads before numpy is there.
_ELSEWHERE = {
    "BatchDecomposition": "lrpca.batch.result",
    "ConvergenceWarning": "lrpca.exceptions",
    "Decomposition": "lrpca.decomposition.result",
    "DiagnosisWarning": "lrpca.exceptions",
    "RobustPCA": "lrpca.tables.estimator",
    "Schedule": "lrpca.schedule",
    "decompose": "lrpca.decompose",
    "decompose_batch": "lrpca.batch.front",
}
_MODULES = ("bench", "datasets", "files", "learn", "metrics", "plot", "report", "tables", "testing", "video")


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds the module of this name; here the name is the function.
        if name == "decompose" and isinstance(value, ModuleType):
            value = value.decompose
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lrpca.{name}")
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'lrpca' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ELSEWHERE, *_MODULES})
