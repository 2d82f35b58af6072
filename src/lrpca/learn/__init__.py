"""Learning the numbers of a schedule: the iteration as a network, its training, and problems to train on.

Needs PyTorch (``pip install "lrpca[learn]"``), which is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lrpca.learn.network import UnrolledNetwork
    from lrpca.learn.training import DivergedError, Progress, train

_HOMES = {
    "train": "lrpca.learn.training",
    "Progress": "lrpca.learn.training",
    "DivergedError": "lrpca.learn.training",
    "UnrolledNetwork": "lrpca.learn.network",
}

__all__ = ["DivergedError", "Progress", "UnrolledNetwork", "train"]

# Submodules that are used by name, as in ``lrpca.learn.problems.Mixture()``.
_MODULES = ("paper", "problems", "report", "tensors", "trainer")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lrpca.learn.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("lrpca.learn needs PyTorch; install it with: pip install 'lrpca[learn]'") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
