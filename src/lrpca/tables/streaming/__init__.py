"""Robust PCA of a stream of rows."""

from lrpca.tables.streaming.tracker import SubspaceTracker

__all__ = ["SubspaceTracker"]
