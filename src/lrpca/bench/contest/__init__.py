"""Methods of this library and others from PyPI compared on one problem, under equal conditions."""

from lrpca.bench.contest.methods import Spec, parse_specs
from lrpca.bench.contest.results import Conditions, Contest, Entry, Point
from lrpca.bench.contest.run import compete

__all__ = ["Conditions", "Contest", "Entry", "Point", "Spec", "compete", "parse_specs"]
