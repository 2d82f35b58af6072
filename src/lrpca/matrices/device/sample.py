"""A sample of entries on a device: residuals of a fit there, and the peak that clean ones make."""

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

    def signed_residuals(self, L: DeviceArray, R: Any) -> Any:
        """Return Y - L Rᵀ at the sampled positions, on the host."""
        left, right = self._factors(L, R)
        fitted = left.index_select(0, self._rows) * right.index_select(0, self._columns)
        return to_host(self._values - fitted.sum(1))

    def core(self, L: DeviceArray, R: Any, rounding: float) -> Any:
        """Return the peak of clean residuals (`lrpca.kernels.scale.Core`), or None where it is the host's to find."""
        left, right = self._factors(L, R)
        alike = all(x.dtype == torch.float64 for x in (left, right, self._values))
        fits = alike and left.shape[1] <= WIDEST and len(self._values) <= _MOST_COUNTED
        if not (rounding and fits and has_triton(self._device)):
            return None
        from lrpca.kernels.triton.small import core_at

        if self._bounds is None or self._bounds[0] != rounding:
            self._bounds = rounding, self._values.new_tensor([rounding, most_counted(rounding)])
        return core_at(left, right, self._rows, self._columns, self._values, *self._bounds)

    def _factors(self, L: DeviceArray, R: Any) -> tuple[Any, Any]:
        return L.tensor, R.tensor if isinstance(R, DeviceArray) else to_device(R, self._device)
