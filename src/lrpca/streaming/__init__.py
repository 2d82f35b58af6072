"""Robust PCA of a stream of rows."""

from lrpca.streaming.tracker import SubspaceTracker

__all__ = ["SubspaceTracker"]
