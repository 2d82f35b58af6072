"""One training step, forward and backward: ours against the same network in plain torch, and against the machine.

    python benchmarks/bench_training.py [--n 1000] [--repeats 15]

The network is the paper's: soft threshold, scaled step, 15 layers of numbers of their own, rank 5, single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from bench_pass import PROBE, limit_cells

from lrpca import Schedule
from lrpca.bench import plain_torch
from lrpca.bench.measuring import Table, arguments, interleave, number, publish
from lrpca.bench.probes import Machine, Planted, factors, planted
from lrpca.core.influence import levels
from lrpca.learn.network import UnrolledNetwork
from lrpca.learn.problems import TrainingProblem, orthonormal_factors
from lrpca.learn.tensors import prepare
from lrpca.matrices.differentiable import DifferentiableMatrix

RANK, RANKS, LAYERS = 5, (1, 2, 5, 10), 15
PARTS = {"step": "whole step", "layers": f"{LAYERS} layers alone"}
# Multiply-adds per entry and component: residual, C R and Cᵀ L; on the way back the residual, C̄, and both products of
# C and of D̄.
MULTIPLY_ADDS = {"pass": 3, "way back": 7}


def numbers(n: int) -> tuple[list[float], list[float]]:
    """Return thresholds and steps of a network that makes progress in every layer."""
    unit = 1000 / n
    return [unit * 1e-2, *(unit * 5e-4 * 0.6**k for k in range(LAYERS))], [0.0, *[0.7] * LAYERS]


class Networks:
    """The network and a problem, ours as a training has them, and in plain torch."""

    def __init__(self, problem: Planted, threads: int) -> None:
        n, self._threads = len(problem.Y), threads
        pairs = zip((problem.U, problem.V), factors(n, RANK), strict=True)
        # Near the truth, to start layers from that are timed without the initialisation.
        self._near = tuple(torch.from_numpy((true + 0.05 * other).astype(np.float32)) for true, other in pairs)
        X = problem.U @ problem.V.T
        self._size, self._X = float(np.linalg.norm(X)), torch.from_numpy(X.astype(np.float32))
        self._Y = torch.from_numpy(problem.Y)
        truth = TrainingProblem(problem.Y, RANK, orthonormal_factors(problem.U, problem.V))
        self._data = prepare(truth, dtype=torch.float32)
        self.network = UnrolledNetwork(Schedule(*numbers(n)), "fnn", positive=False)
        self.plain = [torch.tensor(row, dtype=torch.float32, requires_grad=True) for row in numbers(n)]

    def step(self, part: str) -> float:
        """Go forward and back through ours; return the loss ‖L Rᵀ - X‖."""
        # As a training does: the passes have their own threads, and those of torch would compete with them.
        torch.set_num_threads(1)
        self.network.zero_grad()
        *_, last = self.network.layers(self._data, LAYERS, start=self._near if part == "layers" else None)
        loss = self._size * torch.exp(self._data.log_error(last.L, last.R))
        loss.backward()
        return float(loss.item())

    def plain_step(self, part: str) -> float:
        """Go forward and back through plain torch; return the same loss."""
        torch.set_num_threads(self._threads)
        start = self._near if part == "layers" else None
        return plain_torch.train_step(self._Y, self._X, *self.plain, RANK, start)

    def check(self) -> None:
        """Make sure that both differentiate the same network before their times are compared."""
        pairs = [([self.step("layers")], [self.plain_step("layers")])]
        ours = (self.network.thresholds.grad, self.network.steps.grad)
        pairs += [(a[1:].numpy(), b.grad[1:].numpy()) for a, b in zip(ours, self.plain, strict=True)]
        for mine, theirs in pairs:
            if not np.linalg.norm(np.subtract(mine, theirs)) <= 1e-2 * np.linalg.norm(theirs):
                raise RuntimeError(f"{theirs} of torch differs from ours, {mine}; one of them is wrong")


def race(networks: Networks, n: int, repeats: int) -> Table:
    """Time ours and torch in common rounds."""
    networks.check()
    steps = {"lrpca.learn": networks.step, "plain torch": networks.plain_step}
    calls = {f"{part} {name}": partial(step, part) for part in PARTS for name, step in steps.items()}
    times = interleave(calls, repeats)
    rows = []
    for part, words in PARTS.items():
        base = times[f"{part} lrpca.learn"].seconds
        for name in steps:
            timing = times[f"{part} {name}"]
            rows.append([words, name, number(timing.median * 1e3), timing.spread, number(timing.relative_to(base))])
    columns = ["", "by", "ms", "quartiles", "times ours"]
    return Table(f"One training step, Y {n} x {n}, float32, r={RANK}, {LAYERS} layers", columns, rows)


def passes(Y: Any, machine: Machine, repeats: int) -> Table:
    """Time the two reads of a layer against the limits of the machine."""
    n, work, matrix = len(Y), machine.multiply_add(PROBE), DifferentiableMatrix(Y)
    calls: dict[str, Callable[[], object]] = {}
    for rank in RANKS:
        L, R = (factor.astype(np.float32) for factor in factors(n, rank))
        level = levels("soft", float((5 + rank) ** 0.5 / n))
        calls[f"pass {rank}"] = partial(matrix.run_pass, L, R, level, A=R, B=L)
        calls[f"way back {rank}"] = partial(matrix.run_adjoint, L, R, level, A_bar=L, B_bar=R)
    probes = {"read": partial(machine.read, Y), "multiply-add": partial(machine.multiply_add, work)}
    times = interleave(calls, repeats, probes=probes)
    rows = []
    for name, count in MULTIPLY_ADDS.items():
        for rank in RANKS:
            timing = times[f"{name} {rank}"]
            cells = limit_cells(timing, count * rank * n * n, work)
            rows.append([name, rank, number(timing.median * 1e3), timing.spread, *cells])
    columns = ["read of a layer", "rank", "ms", "quartiles", "limit, ms", "set by", "times the limit"]
    caption = f"The two reads of a layer, Y {n} x {n}, float32; limits: reading, or 3 r n² and 7 r n² multiply-adds"
    return Table(caption, columns, rows)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write training.json."""
    options = {"n": (1000, "rows and columns of Y"), "repeats": (15, "rounds of timing")}
    chosen = arguments(__file__, __doc__, given, command="make bench", **options)
    machine, problem = Machine(), planted(chosen.n, rank=RANK, outlier_fraction=0.1)
    tables = [race(Networks(problem, machine.threads), chosen.n, chosen.repeats)]
    notes = [
        f"{machine.threads} threads for plain torch and for our passes. Medians of {chosen.repeats} rounds; each round "
        "times everything once, in shuffled order, and ratios are taken within a round.",
        "Plain torch clips by sign(D) relu(|D| - ζ), inverts by torch.inverse, starts from torch.svd_lowrank with four "
        "power steps and keeps what automatic differentiation needs; its loss needs X as a matrix, ours the factors of "
        "X. That both give the same loss and derivatives from the same start is checked first. A whole step includes "
        "the initialisation.",
    ]
    publish(chosen, "One training step", [*tables, passes(problem.Y, machine, chosen.repeats)], notes)


if __name__ == "__main__":
    main()
