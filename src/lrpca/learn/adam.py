"""Adam [1]_, for a handful of numbers.

That of torch loads torch's compiler when it is made, which takes longer than many a training; the numbers are the same
to the last bit.

References
----------
.. [1] D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015: algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Keeps the division finite where no gradient has been seen.
_EPSILON = 1e-8


@dataclass
class _Moments:
    """Steps taken, and the running means of the gradient and of its square."""

    count: int
    first: Any  # like the parameter
    second: Any  # like the parameter


class Adam:
    """Gradient steps by running means of the gradient and its square.

    Parameters
    ----------
    groups : sequence of sequence of Parameter
        Those of a group have one rate.
    rates : sequence of float
        One for each group; they may be changed between steps.
    decays : tuple of float
        Of the two means, β₁ and β₂.

    Examples
    --------
    >>> number = torch.nn.Parameter(torch.tensor([3.0]))
    >>> adam = Adam([[number]], [0.1])
    >>> (number**2).sum().backward()
    >>> adam.step()
    >>> round(number.item(), 4)
    2.9
    """

    def __init__(
        self, groups: Sequence[Sequence[Any]], rates: Sequence[float], decays: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.rates = list(rates)
        self._decays = decays
        self._parameters = [(parameter, group) for group, members in enumerate(groups) for parameter in members]
        self._moments: dict[int, _Moments] = {}

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter, _ in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take one step in every parameter that has a gradient."""
        for index, (parameter, group) in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            if index not in self._moments:
                self._moments[index] = _Moments(0, torch.zeros_like(parameter), torch.zeros_like(parameter))
            moments = self._moments[index]
            beta1, beta2 = self._decays
            moments.count += 1
            moments.first.lerp_(gradient, 1 - beta1)
            moments.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            # The means begin at zero, for which is made up.
            length = self.rates[group] / (1 - beta1**moments.count)
            scale = (moments.second.sqrt() / (1 - beta2**moments.count) ** 0.5).add_(_EPSILON)
            parameter.addcdiv_(moments.first, scale, value=-length)

    def state(self) -> dict[str, Any]:
        """Return the means, counts and rates as JSON holds them, to the last bit."""
        moments = {
            str(index): {"step": float(m.count), "exp_avg": m.first.tolist(), "exp_avg_sq": m.second.tolist()}
            for index, m in self._moments.items()
        }
        return {"state": moments, "rates": [{"lr": rate} for rate in self.rates]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to such a state."""
        rates = [float(rate["lr"]) for rate in state["rates"]]
        if len(rates) != len(self.rates):
            raise ValueError(f"{len(rates)} rates, {len(self.rates)} are needed")
        moments = {}
        for index, entry in state["state"].items():
            parameter = self._parameters[int(index)][0]
            first, second = (torch.tensor(entry[name], dtype=parameter.dtype) for name in ("exp_avg", "exp_avg_sq"))
            if first.shape != parameter.shape or second.shape != parameter.shape:
                raise ValueError(f"moments of {len(first)} numbers, {len(parameter)} are needed")
            moments[int(index)] = _Moments(int(entry["step"]), first, second)
        self.rates, self._moments = rates, moments
