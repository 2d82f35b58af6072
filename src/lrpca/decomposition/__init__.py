"""The result of a decomposition: the object, its files, its tensors."""

from lrpca.decomposition.result import Decomposition, Diagnosis

__all__ = ["Decomposition", "Diagnosis"]
