"""Triton kernels that are started often: compiled once, and then started without a search for the compiled form."""

from __future__ import annotations

from typing import Any

import triton

# Compiled kernels depend on which arguments begin at multiples of so many bytes.
_ALIGNED = 16
# Since this version compiled kernels are started with all arguments, constants too.
_TAKES_CONSTANTS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 3)


class Kernel:
    """A kernel with its grid and constants: compiled when it is first started, for arguments that are aligned alike.

    From one start to the next tensors may change, floats, and integers that Triton was told not to specialise for;
    everything else that compiled code depends on has to stay: number types, other integers, the device.
    """

    def __init__(self, function: Any, grid: tuple[int, int, int], constants: dict[str, Any], **settings: Any) -> None:
        self._function, self._grid, self._settings = function, grid, settings
        self._constants = {name: constants[name] for name in function.arg_names if name in constants}
        self._compiled: dict[tuple[bool, ...], Any] = {}

    @staticmethod
    def alignment(tensors: tuple[Any, ...]) -> tuple[bool, ...]:
        """Return which tensors begin at multiples of sixteen bytes, on which compiled kernels depend."""
        return tuple(tensor.data_ptr() % _ALIGNED == 0 for tensor in tensors)

    def is_compiled_for(self, aligned: tuple[bool, ...]) -> bool:
        """Tell whether it was started before with arguments that are aligned so."""
        return aligned in self._compiled

    def start(self, aligned: tuple[bool, ...], *arguments: Any) -> None:
        """Start it with tensors, or with addresses if it is compiled.

        `aligned` tells which of the arguments that change from call to call are aligned, see `alignment`.
        """
        compiled = self._compiled.get(aligned)
        if compiled is not None:
            compiled(*arguments, *self._constants.values())
            return
        found = self._function[self._grid](*arguments, **self._constants, **self._settings)
        if _TAKES_CONSTANTS and found is not None:
            self._compiled[aligned] = found[self._grid]
