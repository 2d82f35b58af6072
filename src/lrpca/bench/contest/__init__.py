"""The arena: solvers of this library and rivals from PyPI on one problem, under equal conditions."""

from lrpca.bench.contest.contestants import Spec, parse_specs
from lrpca.bench.contest.entry import Entry, Point
from lrpca.bench.contest.run import Contest, compete

__all__ = ["Contest", "Entry", "Point", "Spec", "compete", "parse_specs"]
