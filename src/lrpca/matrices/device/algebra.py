"""The formulas of `lrpca.core.factors` that are computed another way on a device."""

from lrpca.matrices.device.bases import normal_form, orthonormal, thin_svd
from lrpca.matrices.device.step import retract

__all__ = ["normal_form", "orthonormal", "retract", "thin_svd"]
