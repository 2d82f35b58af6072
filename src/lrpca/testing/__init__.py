"""Planted problems with their truth, and a grid of them from easy to nasty, to test and compare solvers on."""

from lrpca.testing.cases import Case, grid, recovered, wrong
from lrpca.testing.problems import Problem, planted

__all__ = ["Case", "Problem", "grid", "planted", "recovered", "wrong"]
