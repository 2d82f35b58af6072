"""The arena: solvers of this library and rivals from PyPI on one problem, under equal conditions."""

from lrpca.arena.contest import Contest, compete
from lrpca.arena.contestants import Spec, parse_specs
from lrpca.arena.entry import Entry, Point

__all__ = ["Contest", "Entry", "Point", "Spec", "compete", "parse_specs"]
