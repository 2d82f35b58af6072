"""What both algorithms of training share: steps that can be counted, saved and resumed, and held-out problems."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from lrpca.learn.network import UnrolledNetwork
from lrpca.learn.tensors import Data

# Errors beyond e to this power are infinite.
_LARGEST_LOG = 700.0


class Trainer(ABC):
    """An algorithm of training, one step at a time: of `total` steps, `position` are taken.

    At the end, `depth` layers are validated.
    """

    keeps_best = True  # whether the numbers with the best score count, rather than the last ones
    finishing: str | None = None  # what `finish` does, in a few words

    def __init__(self, network: UnrolledNetwork, total: int, depth: int) -> None:
        self.network, self.total, self.depth, self.position = network, total, depth, 0

    @property
    def stage(self) -> str:
        """What is being done, in a few words."""
        return "training"

    @property
    def trained_depth(self) -> int:
        """Layers that can be validated at this point."""
        return self.depth

    @abstractmethod
    def step(self) -> float:
        """Take one step and return its loss; raise FloatingPointError where something it needs is not finite."""

    def finish(self, held_out: Sequence[Data]) -> None:
        """Finish on held-out problems when all steps are taken and the best numbers are in place."""
        return None

    def state(self) -> dict[str, Any]:
        """Return all that the steps to come depend on, as JSON can hold it."""
        return {"position": self.position, "parameters": pack_parameters(self.network)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to such a state."""
        self.position = int(state["position"])
        unpack_parameters(self.network, state["parameters"])


@contextmanager
def torch_settings(device: str) -> Iterator[None]:
    """Let torch work with one thread, without a caller's autocast and default device.

    Only thin matrices are left to torch, on which several threads would wait for each other; passes over Y have their
    own. Autocast rounds to sixteen bits, and the numbers of a network are on the CPU.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ExitStack() as settings:
            for kind in sorted({"cpu", torch.device(device).type}):
                settings.enter_context(torch.autocast(kind, enabled=False))
            if torch.get_default_device().type != "cpu":
                settings.enter_context(torch.device("cpu"))
            yield
    finally:
        torch.set_num_threads(threads)


class Validation:
    """Held-out problems, the same ones in every evaluation."""

    def __init__(self, problems: Sequence[Data]) -> None:
        self.problems = problems

    def curve(self, network: UnrolledNetwork, depth: int) -> list[float]:
        """Return the error after layers 0 to `depth`, geometric mean over the problems; inf where it is not finite."""
        logs = np.zeros(depth + 1)
        with torch.no_grad():
            for data in self.problems:
                logs += _log_losses(network, data, depth)
        logs /= len(self.problems)
        return [math.exp(value) if value < _LARGEST_LOG else math.inf for value in logs.tolist()]

    def score(self, curve: Sequence[float]) -> float:
        """Return the score of a curve, by the layers that count on these problems."""
        return score(curve, self.problems[0].first_counted(len(curve) - 1))


def _log_losses(network: UnrolledNetwork, data: Data, depth: int) -> list[float]:
    logs: list[float] = []
    try:
        for layer in network.layers(data, depth):
            logs.append(float(data.log_loss(layer.L, layer.R)))
    except FloatingPointError:
        logs += [math.inf] * (depth + 1 - len(logs))
    return logs


def score(curve: Sequence[float], first: int = 1) -> float:
    """Return the mean of log10 of the errors from layer `first` on: lower is better, inf for a network that fails.

    A curve of layer 0 alone is scored by that layer.

    Examples
    --------
    >>> score([1.0, 1e-2, 1e-4])
    -3.0
    """
    if not all(math.isfinite(error) for error in curve):
        return math.inf
    errors = curve[first:] or curve
    return sum(math.log10(max(error, 1e-300)) for error in errors) / len(errors)


def pack_parameters(network: UnrolledNetwork) -> dict[str, list[float]]:
    """Return the parameters of a network as lists, which JSON holds to the last bit."""
    return {name: parameter.detach().tolist() for name, parameter in network.named_parameters()}


def unpack_parameters(network: UnrolledNetwork, packed: dict[str, Any]) -> None:
    """Put packed parameters back into a network."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            values = torch.tensor(packed[name], dtype=parameter.dtype)
            if values.shape != parameter.shape:
                raise ValueError(f"{name} has {len(values)} numbers, {len(parameter)} are needed")
            parameter.copy_(values)
