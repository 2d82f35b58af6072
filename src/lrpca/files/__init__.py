"""Files: formats, text tables, data that are read a rectangle at a time, and writing without loss."""

from lrpca.files.formats import read_matrix

__all__ = ["read_matrix"]
