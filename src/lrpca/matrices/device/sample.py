"""A sample of entries on a device: residuals of a fit there, and the peak that clean ones make.

The last result is kept: a run needs it again at its end.
"""

from __future__ import annotations

from typing import Any

import torch

from lrpca.kernels.gpu import WIDEST, has_triton
from lrpca.kernels.scale import most_counted
from lrpca.matrices.device.array import DeviceArray, to_device, to_host

# Entries of a sample that one kernel counts.
_MOST_COUNTED = 1 << 20


class DeviceSample:
    """Positions and values of sampled entries on a device; see `lrpca.matrices.sample.Sample`."""

    def __init__(
        self,
        rows: Any,  # (m,) int
        columns: Any,  # (m,) int
        values: Any,  # (m,)
        device: Any,
    ) -> None:
        self._rows, self._columns, self._values = (to_device(x, device) for x in (rows, columns, values))
        self._device = device
        self._bounds: Any = None  # the rounding of the last core, and (2,) what sizes are counted between
        self._last: dict[str, tuple[Any, ...]] = {}

    def signed_residuals(self, L: DeviceArray, R: Any) -> Any:
        """Return Y - L Rᵀ at the sampled positions, on the host."""
        left, right = self._factors(L, R)
        known = self._known("residuals", left, right)
        if known is not None:
            return known
        if self._has_kernels(left, right):
            from lrpca.kernels.triton.small import residuals_at

            found = to_host(residuals_at(left, right, self._rows, self._columns, self._values))
        else:
            fitted = left.index_select(0, self._rows) * right.index_select(0, self._columns)
            found = to_host(self._values - fitted.sum(1))
        self._remember("residuals", left, right, found)
        return found

    def core(self, L: DeviceArray, R: Any, rounding: float) -> Any:
        """Return the peak of clean residuals (`lrpca.kernels.scale.Core`), or None where it is the host's to find."""
        left, right = self._factors(L, R)
        known = self._known("core", left, right)
        if known is not None and known[0] == rounding:
            return known[1]
        if not rounding or not self._has_kernels(left, right) or len(self._values) > _MOST_COUNTED:
            return None
        from lrpca.kernels.triton.small import core_at

        if self._bounds is None or self._bounds[0] != rounding:
            self._bounds = rounding, self._values.new_tensor([rounding, most_counted(rounding)])
        found = core_at(left, right, self._rows, self._columns, self._values, *self._bounds)
        self._remember("core", left, right, (rounding, found))
        return found

    def _factors(self, L: DeviceArray, R: Any) -> tuple[Any, Any]:
        return L.tensor, R.tensor if isinstance(R, DeviceArray) else to_device(R, self._device)

    def _has_kernels(self, L: Any, R: Any) -> bool:
        """Tell whether there are kernels for factors like these."""
        alike = all(x.dtype == torch.float64 for x in (L, R, self._values))
        return alike and L.shape[1] <= WIDEST and has_triton(self._device)

    def _known(self, what: str, L: Any, R: Any) -> Any:
        """Return what was found of these factors, if they have not changed since."""
        last, versions = self._last.get(what), _versions(L, R)
        if last is None or versions is None or last[0] is not L or last[1] is not R or last[2] != versions:
            return None
        return last[3]

    def _remember(self, what: str, L: Any, R: Any, found: Any) -> None:
        self._last[what] = (L, R, _versions(L, R), found)


def _versions(L: Any, R: Any) -> tuple[int, int] | None:
    """Return how often tensors were changed; None of those made in inference mode, which do not count it."""
    return None if L.is_inference() or R.is_inference() else (L._version, R._version)
