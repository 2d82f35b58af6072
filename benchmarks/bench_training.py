"""One training step, forward and backward: ours against the same network in plain torch, and against the machine.

    python benchmarks/bench_training.py [--n 1000] [--repeats 15] [--results FOLDER]

The network is the paper's: soft threshold, scaled step, 15 layers of numbers of their own, rank 5, single precision.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from limits import Machine
from measure import RESULTS, Table, Timing, interleave, load_note, number, publish
from problems import factors
from torch_iterations import TUNED, Torch
from torch_training import LAYERS, near, numbers, problem_of

from lrpca import Schedule
from lrpca.core.influence import levels
from lrpca.learn.network import UnrolledNetwork
from lrpca.learn.problems import TrainingProblem, orthonormal_factors
from lrpca.learn.tensors import Data, prepare
from lrpca.matrices.differentiable import DifferentiableMatrix

RANK = 5
RANKS = (1, 2, 5, 10)
SCRIPT = Path(__file__).with_name("torch_training.py")
PLAIN = {"plain": "plain torch", "tuned": "plain torch, allocator tuned"}
PARTS = {"step": "whole step", "layers": f"{LAYERS} layers alone"}
# Multiply-adds per entry and component: residual, C R and Cᵀ L; on the way back the residual, C̄, and both products of
# C and of D̄.
MULTIPLY_ADDS = {"pass": 3, "way back": 7}
# The heap of the tuned allocator grows for some steps before every temporary finds its place in it.
_SETTLING = 4
_PROBE = 4e8


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=1000, help="rows and columns of Y (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=15, help="rounds of timing (default: %(default)s)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the result file (default: benchmarks/results)"
    )
    chosen = parser.parse_args(given)
    for name, least in (("n", 100), ("repeats", 1)):
        if getattr(chosen, name) < least:
            parser.error(f"--{name}={getattr(chosen, name)} is below {least}; use at least that")
    return chosen


class Ours:
    """The network and the problem, as a training has them."""

    def __init__(self, n: int) -> None:
        problem = problem_of(n, RANK)
        self._start = tuple(torch.from_numpy(factor) for factor in near(problem))
        self._size = float(np.linalg.norm(problem.U @ problem.V.T))
        self.data: Data = prepare(
            TrainingProblem(problem.Y, RANK, orthonormal_factors(problem.U, problem.V)), dtype=torch.float32
        )
        self.network = UnrolledNetwork(Schedule(*numbers(n, RANK)), "fnn", positive=False)

    def step(self, part: str) -> float:
        """Go forward and back; return the loss ‖L Rᵀ - X‖ and leave its derivatives in the network."""
        self.network.zero_grad()
        *_, last = self.network.layers(self.data, LAYERS, start=self._start if part == "layers" else None)
        loss = self._size * torch.exp(self.data.log_error(last.L, last.R))
        loss.backward()
        return loss.item()

    def forward(self) -> None:
        """Go forward alone."""
        with torch.no_grad():
            self.network(self.data, LAYERS)


def check_agreement(ours: Ours, plain: Mapping[str, Any]) -> None:
    """Make sure that both differentiate the same network before their times are compared."""
    loss = ours.step("layers")
    pairs = [("loss", np.array([loss]), np.array([plain["loss"]]))]
    for name in ("thresholds", "steps"):
        pairs.append((name, getattr(ours.network, name).grad.numpy()[1:], np.array(plain[name][1:])))
    for name, mine, theirs in pairs:
        if not np.linalg.norm(mine - theirs) <= 1e-2 * np.linalg.norm(theirs):
            raise RuntimeError(f"{name}={theirs} of torch differs from ours, {mine}; one of them is wrong")


def race(n: int, machine: Machine, repeats: int) -> Table:
    """Time ours and torch in common rounds."""
    # As a training does: the passes have threads of their own, and those of torch would be in their way.
    torch.set_num_threads(1)
    ours = Ours(n)
    contestants: dict[str, Callable[[], object]] = {f"ours {part}": partial(ours.step, part) for part in PARTS}
    contestants["ours forward"] = ours.forward
    with (
        Torch(n, machine.threads, script=SCRIPT) as plain,
        Torch(n, machine.threads, TUNED, script=SCRIPT) as tuned,
    ):
        check_agreement(ours, plain.iterate("layers", RANK))
        for _ in range(_SETTLING):
            tuned.iterate("step", RANK)
        for name, process in (("plain", plain), ("tuned", tuned)):
            for part in PARTS:
                contestants[f"{name} {part}"] = partial(process.iterate, part, RANK)
        times = interleave(contestants, repeats)
    return step_table(n, times)


def step_table(n: int, times: Mapping[str, Timing]) -> Table:
    """Return the steps, and how many times as long as ours the others take."""
    rows: list[list[Any]] = []
    for part, words in PARTS.items():
        base = times[f"ours {part}"]
        for name, label in {"ours": "lrpca.learn", **PLAIN}.items():
            timing = times[f"{name} {part}"]
            ratio = number(timing.relative_to(base.seconds))
            rows.append([words, label, number(timing.median * 1e3), timing.spread, ratio])
    forward = times["ours forward"]
    ratio = number(forward.relative_to(times["ours step"].seconds))
    rows.append(["forward, no way back", "lrpca.learn", number(forward.median * 1e3), forward.spread, ratio])
    columns = ["", "by", "ms", "quartiles", "times ours"]
    return Table(f"One training step, Y {n} x {n}, float32, r={RANK}, {LAYERS} layers", columns, rows)


def passes(n: int, machine: Machine, repeats: int) -> Table:
    """Time the two reads of a layer against the limits of the machine."""
    work = machine.multiply_add(_PROBE)
    Y = problem_of(n, RANK).Y
    matrix = DifferentiableMatrix(Y)
    contestants: dict[str, Callable[[], object]] = {}
    for rank in RANKS:
        L, R = (factor.astype(np.float32) for factor in factors(n, rank))
        level = levels("soft", float((5 + rank) ** 0.5 / n))
        contestants[f"pass {rank}"] = partial(matrix.run_pass, L, R, level, A=R, B=L)
        contestants[f"way back {rank}"] = partial(matrix.run_adjoint, L, R, level, A_bar=L, B_bar=R)
    probes: dict[str, Callable[[], object]] = {
        "read": partial(machine.read, Y),
        "multiply-add": partial(machine.multiply_add, work),
    }
    return limits_table(n, interleave(contestants, repeats, probes=probes), work)


def limits_table(n: int, times: Mapping[str, Timing], work: int) -> Table:
    """Return how far both reads are from the nearer limit."""
    rows: list[list[Any]] = []
    for name, count in MULTIPLY_ADDS.items():
        for rank in RANKS:
            timing = times[f"{name} {rank}"]
            read = np.array(timing.probes["read"])
            arithmetic = count * rank * n * n * np.array(timing.probes["multiply-add"]) / work
            limit = np.maximum(read, arithmetic)
            rows.append(
                [
                    *(name, rank, number(timing.median * 1e3), timing.spread),
                    number(float(np.median(limit)) * 1e3),
                    "reading" if np.median(read) > np.median(arithmetic) else "arithmetic",
                    number(timing.relative_to(limit.tolist())),
                ]
            )
    columns = ["read of a layer", "rank", "ms", "quartiles", "limit, ms", "set by", "times the limit"]
    caption = f"The two reads of a layer, Y {n} x {n}, float32; limits: reading, or 3 r n² and 7 r n² multiply-adds"
    return Table(caption, columns, rows)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write bench_training.json."""
    chosen = arguments(given)
    load = load_note()
    machine = Machine()
    tables = [race(chosen.n, machine, chosen.repeats), passes(chosen.n, machine, chosen.repeats)]
    notes = [
        f"{machine.threads} threads for plain torch and for our passes. Medians of {chosen.repeats} rounds; each round "
        "times everything once, in shuffled order, and ratios are taken within a round.",
        "Plain torch clips by sign(D) relu(|D| - ζ), inverts by torch.inverse, starts from torch.svd_lowrank with four "
        "power steps and keeps what automatic differentiation needs; its loss needs X as a matrix, ours the factors of "
        "X. That both give the same loss and derivatives from the same start is checked first.",
        "A whole step includes the initialisation. With the allocator tuned, temporaries are reused instead of mapped "
        "anew, see benchmarks/README.md.",
        load,
    ]
    publish(
        chosen.results / "bench_training.json",
        title="One training step",
        command="make bench",
        tables=tables,
        notes=notes,
    )


if __name__ == "__main__":
    main()
