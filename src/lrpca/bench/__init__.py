"""Comparisons of methods, and the paper's experiments."""

import importlib
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Load a part of the package when it is first used."""
    if name in ("contest", "experiments"):
        return importlib.import_module(f"lrpca.bench.{name}")
    raise AttributeError(f"module 'lrpca.bench' has no attribute {name!r}")
