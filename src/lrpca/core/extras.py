"""Packages of the extras, imported where they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def require(package: str, extra: str, need: str) -> Any:
    """Return an optional package; without it, raise an ImportError that says what needs it and what to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"{need}; pip install lrpca[{extra}]") from error
