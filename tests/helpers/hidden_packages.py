"""A plugin of pytest: packages that HIDDEN_PACKAGES names, by commas, are as if they were not installed."""

import os
import sys
from typing import Any

import pytest


class Hiding:
    """What finds modules, but not these."""

    def __init__(self, finder: Any, names: set[str]) -> None:
        self._finder, self._names = finder, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, *place: Any) -> Any:
        return None if name.split(".")[0] in self._names else self._finder.find_spec(name, *place)


# Plugins of others, which come with some of the packages, are loaded by then.
@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    names = set(os.environ["HIDDEN_PACKAGES"].split(","))
    for module in [module for module in sys.modules if module.split(".")[0] in names]:
        del sys.modules[module]
    sys.meta_path[:] = [Hiding(finder, names) for finder in sys.meta_path]
