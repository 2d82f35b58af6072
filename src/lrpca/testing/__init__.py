"""Problems with their truth: planted, random, a grid from easy to nasty; and a contract to test any solver by."""

from lrpca.testing.cases import Case, grid, recovered, wrong
from lrpca.testing.contract import CHECKS, Contract
from lrpca.testing.optimality import pcp_violation
from lrpca.testing.problems import Problem, planted
from lrpca.testing.random_problems import random_problem

__all__ = [
    "CHECKS",
    "Case",
    "Contract",
    "Problem",
    "grid",
    "pcp_violation",
    "planted",
    "random_problem",
    "recovered",
    "wrong",
]
