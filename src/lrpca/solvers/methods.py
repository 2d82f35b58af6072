"""The methods `lrpca.decompose` knows, and what each of them can take.

One paper, one file: ``lrpca.solvers.<name>`` has a function `solve` with the method's own parameters as keywords, and
`OPTIONS` with a check of each. Nothing is imported before it is used.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from lrpca.solvers.base import Solution
from lrpca.solvers.options import Check


@dataclass(frozen=True)
class Method:
    """A solver and what it can take.

    Attributes
    ----------
    name : str
        The argument of `lrpca.decompose`, and the file in ``lrpca/solvers``.
    title : str
        A short description.
    tol : float
        Default tolerance (single precision: not below 1e-6).
    max_iter : int
        Default limit of the iterations.
    measure : {"residual", "change"}
        What `tol` bounds: ``‖Y - X - S‖ / ‖Y‖`` (over ‖X‖ where that is smaller), or the relative change of X
        (grassmann: of a direction).
    needs_rank, missing, start : bool
        Whether it requires the rank, accepts missing entries, and can start from given factors.
    schedule, row_weight : bool
        Whether it uses these arguments.
    exact : bool
        Whether X + S = Y in the limit, even with noise: a stationary X is then no reason to stop.
    streams : bool
        Whether it reads Y in blocks and allocates no array of its size.
    held : float
        How many arrays of the size of Y it allocates.
    device : bool
        Whether it runs on a GPU, where Y is a tensor there.
    units : tuple of (str, int)
        Which options, and numbers of an iteration, are multiples of a power of the unit of Y, and of which power;
        thresholds of iterations, always of the first, aside.
    """

    name: str
    title: str
    tol: float
    max_iter: int
    measure: str = "residual"
    needs_rank: bool = True
    missing: bool = True
    start: bool = True
    schedule: bool = False
    row_weight: bool = False
    exact: bool = False
    streams: bool = False
    held: float = 0.0
    device: bool = False
    units: tuple[tuple[str, int], ...] = ()

    @property
    def solve(self) -> Callable[..., Solution]:
        """The solver."""
        return cast("Callable[..., Solution]", self._module().solve)

    @property
    def options(self) -> Mapping[str, Check]:
        """The checks of its options, by name."""
        return cast("Mapping[str, Check]", self._module().OPTIONS)

    def defaults(self) -> dict[str, Any]:
        """Return its options as they are when not given; None is found from the data."""
        parameters = inspect.signature(self.solve).parameters
        return {name: parameters[name].default for name in self.options}

    def in_units(self, values: dict[str, Any], unit: float) -> dict[str, Any]:
        """Return options, or numbers of an iteration, for data that were divided by this."""
        powers = {name: power for name, power in self.units if values.get(name) is not None}
        return values | {name: values[name] * unit**-power for name, power in powers.items()}

    def _module(self) -> Any:
        return importlib.import_module(f"lrpca.solvers.{self.name}")


_ALL = (
    Method(
        "lrpca",
        "learned robust PCA, and the default that needs no training",
        tol=1e-8,
        max_iter=300,
        measure="change",
        schedule=True,
        row_weight=True,
        streams=True,
        device=True,
    ),
    Method("scaledgd", "scaled gradient descent (Tong, Ma, Chi 2021)", tol=1e-7, max_iter=500, held=3.0),
    Method("gd", "gradient descent on factors (Yi et al. 2016)", tol=1e-7, max_iter=1000, held=3.0),
    Method(
        "altproj", "alternating projections (Netrapalli et al. 2014)", tol=1e-7, max_iter=500, start=False, held=0.5
    ),
    Method(
        "accaltproj", "accelerated alternating projections (Cai, Cai, Wei 2019)", tol=1e-7, max_iter=300, streams=True
    ),
    Method(
        "pcp",
        "principal component pursuit (Candès et al. 2011)",
        tol=1e-7,
        max_iter=1000,
        needs_rank=False,
        start=False,
        exact=True,
        held=2.5,
        units=(("mu", -1), ("step", -1)),
    ),
    Method(
        "stable_pcp",
        "stable principal component pursuit (Zhou et al. 2010)",
        tol=1e-6,
        max_iter=1000,
        measure="change",
        needs_rank=False,
        start=False,
        held=2.0,
        units=(("noise_level", 1),),
    ),
    Method(
        "ircur",
        "iterated robust CUR (Cai et al. 2020)",
        tol=1e-7,
        max_iter=200,
        start=False,
        streams=True,
        units=(("threshold", 1),),
    ),
    Method(
        "sampled",
        "rows and columns sampled, the rest regressed on them, full passes if they pay",
        tol=1e-8,
        max_iter=300,
        measure="change",
        start=False,
        streams=True,
        device=True,
    ),
    Method(
        "pgrmc",
        "projected gradient for robust matrix completion (Cherapanamjeri et al. 2017)",
        tol=1e-7,
        max_iter=300,
        streams=True,
    ),
    Method("godec", "go decomposition (Zhou, Tao 2011)", tol=1e-7, max_iter=300, streams=True),
    Method(
        "grassmann",
        "Grassmann averages, plain and trimmed (Hauberg et al. 2014)",
        tol=1e-5,
        max_iter=300,
        measure="change",
        missing=False,
        start=False,
        held=0.5,
    ),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
# "auto" samples where the sampled rows and columns are at most this part of Y: from about 2700 x 2700 on at rank 5.
_SAMPLED_PART = 0.3


def pays_to_sample(shape: tuple[int, int], rank: int) -> bool:
    """Tell whether "auto" is "sampled" rather than "lrpca": by shape and rank alone."""
    from lrpca.solvers.cross import cross_sides

    sides = cross_sides(shape, rank, 1.0)
    return sides is not None and sum(m / n for m, n in zip(sides, shape, strict=True)) <= _SAMPLED_PART


def find_method(name: Any) -> Method:
    """Return a method by its name, or raise with the list of those there are.

    "auto" is "lrpca" as long as Y is not known, see `pays_to_sample`.
    """
    if isinstance(name, str) and name in (*METHODS, "auto"):
        return METHODS["lrpca" if name == "auto" else name]
    raise ValueError(f"method={name!r} is unknown; use one of {', '.join(METHODS)}, auto")


def able_to(capability: str) -> str:
    """Return the names of the methods with a capability, for messages."""
    return ", ".join(name for name, method in METHODS.items() if getattr(method, capability))
