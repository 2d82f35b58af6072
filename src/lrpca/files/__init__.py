"""Files: formats, text tables, data that are read a rectangle at a time, and writing without loss."""

from lrpca.files.reading import read_matrix

__all__ = ["read_matrix"]
