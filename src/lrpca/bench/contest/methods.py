"""The methods that can be compared, those of this library and others from PyPI; how one is written, and how it runs.

A method is a name with settings, ``accaltproj:gamma=0.5,beta=0.01``. Several are separated by commas or spaces; what
has an equals sign and no colon belongs to the method before it.

The solvers from PyPI have no callback. pyrpca prints a line in every iteration and tensorly calls its own
`soft_thresholding`; from there their iterate is read, by reference and without a copy. Nothing of them is changed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import lrpca
from lrpca.solvers.methods import METHODS
from lrpca.solvers.options import Check, check_options, choice, integer, number, read_method

# Called with an iterate, as factors (L, R) or as a matrix; True asks to stop.
Look = Callable[[Any], bool]
# Of the solvers from PyPI, unless given.
_TOL, _MAX_ITER = 1e-7, 1000

# tensorly: μ at the start, in units of 1 / ‖Y‖₂, and its growth, by the smaller side. With these it takes the fewest
# iterations to 1e-4 and to 1e-6 among settings that converge at α = 0.1 and at 0.3; faster growth stops it short.
_TENSORLY_MU, _TENSORLY_GROWTH, _TENSORLY_GROWTH_SMALL, _SMALL = 5.0, 1.3, 1.2, 400
_POWER_STEPS = 30
# Settings of every method, besides its own options.
COMMON: dict[str, Check] = {"tol": number(least=0, below=1), "max_iter": integer(1)}


@dataclass(frozen=True)
class OtherMethod:
    """A solver from PyPI."""

    name: str
    title: str
    package: str  # what to install
    options: Mapping[str, Check]
    iterates: bool = True

    def version(self) -> str | None:
        """Return the version that is installed, if any."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


_OTHERS = (
    OtherMethod(
        "pyrpca",
        "pyrpca: principal component pursuit by inexact ALM, its defaults, λ = 1/√max(n1, n2)",
        "pyrpca",
        {"sparsity_factor": number(above=0), "mu": number(above=0), "rho": number(above=1)},
    ),
    OtherMethod(
        "tensorly",
        "tensorly.decomposition.robust_pca, set to converge fastest",
        "tensorly",
        {"reg_E": number(above=0), "mu_init": number(above=0), "learning_rate": number(above=1)},
    ),
    OtherMethod(
        "sklearn",
        "scikit-learn's PCA, for comparison: not robust, columns centred, missing entries set to their column's mean",
        "scikit-learn",
        {"svd_solver": choice("auto", "full", "covariance_eigh", "arpack", "randomized")},
        iterates=False,
    ),
)
OTHERS: dict[str, OtherMethod] = {other.name: other for other in _OTHERS}

# "all": every method, some at several values of an option, and the solvers from PyPI.
ALL = (
    *("lrpca", "sampled", "ircur"),
    *("accaltproj:gamma=0.5", "accaltproj:gamma=0.7", "accaltproj:gamma=0.9"),
    "scaledgd",
    *("altproj:variant=paper", "altproj:variant=ncrpca"),
    *("gd", "gd:sample=0.2"),
    *("pcp:algorithm=ialm", "pcp:algorithm=admm"),
    *("stable_pcp", "pgrmc", "godec"),
    *("grassmann", "grassmann:trim=0"),
    *OTHERS,
)


@dataclass(frozen=True)
class Spec:
    """One method with its settings.

    Attributes
    ----------
    text : str
        As it was asked for, e.g. ``"accaltproj:gamma=0.5"``.
    name : str
        A method of this library, or a solver from PyPI.
    settings : dict
        Its options, and `tol` and `max_iter` if given.
    """

    text: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def other(self) -> OtherMethod | None:
        """The solver from PyPI, if it is one."""
        return OTHERS.get(self.name)

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        return self.other.title if self.other else METHODS[self.name].title


def parse_specs(specs: str | Iterable[str]) -> list[Spec]:
    """Return the methods that a text, or several, ask for.

    Parameters
    ----------
    specs : str or iterable of str
        ``"all"``, or methods separated by commas or spaces, each ``name`` or ``name:option=value,option=value``.
        A value is a number, ``true``, ``false``, ``none``, a word, or several of them joined by ``+``.

    Returns
    -------
    list of Spec
        In the order asked for, none twice.

    Raises
    ------
    ValueError
        A name, an option or a value is unknown; the message lists the known ones.

    Examples
    --------
    >>> from lrpca.bench.contest import parse_specs
    >>> [spec.text for spec in parse_specs("lrpca, lrpca:power_steps=2,sample_size=5000 pyrpca")]
    ['lrpca', 'lrpca:power_steps=2,sample_size=5000', 'pyrpca']
    """
    texts = [specs] if isinstance(specs, str) else list(specs)
    written: list[str] = []
    for word in re.split(r"[\s,;]+", ",".join(texts)):
        if not word:
            continue
        if "=" in word.partition(":")[0]:
            if not written or ":" not in written[-1]:
                raise ValueError(f"methods={word!r} is a setting without a method; write it as name:{word}")
            written[-1] += f",{word}"
        else:
            written += ALL if word == "all" else [word]
    if not written:
        raise ValueError(f"methods={' '.join(texts)!r} names none; use all, or some of {_known()}")
    return [_parse(text) for text in dict.fromkeys(written)]


def _parse(text: str) -> Spec:
    name, given = read_method(text, "methods")
    if name not in METHODS and name not in OTHERS:
        raise ValueError(f"methods={name!r} is unknown; use all, or some of {_known()}")
    return Spec(text, name, check_options(given, {**options_of(name), **COMMON}, name))


def options_of(name: str) -> Mapping[str, Check]:
    """Return the checks of a method's own options."""
    return OTHERS[name].options if name in OTHERS else METHODS[name].options


def _known() -> str:
    return ", ".join([*METHODS, *OTHERS])


# ------------------------------------------------------------------------------------------------ calls


@dataclass(frozen=True)
class Answer:
    """What a method returns."""

    low_rank: Any  # factors (L, R), or the matrix X
    converged: bool | None  # its own verdict; None if it gives none
    reason: str
    iterations: int | None  # None if it does not count them
    settings: dict[str, Any]  # as used
    estimated: tuple[str, ...] = ()  # those of them found from the data
    rank: int | None = None  # of X, where it tells
    threshold: Any = None  # residual beyond which an entry is an outlier, where it tells


@dataclass(frozen=True)
class Task:
    """What a method is given; its settings are its options, `tol` and `max_iter`, where given."""

    name: str
    rank: int
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """Its own options alone."""
        return {name: value for name, value in self.settings.items() if name not in ("tol", "max_iter")}


def solve(
    task: Task,
    Y: Any,  # (n1, n2)
    look: Look,
) -> Answer:
    """Run a method on a matrix, showing each iterate to `look`."""
    if task.name in METHODS:
        return _ours(task, Y, look)
    return {"pyrpca": _pyrpca, "tensorly": _tensorly, "sklearn": _sklearn}[task.name](task, Y, look)


def _ours(task: Task, Y: Any, look: Look) -> Answer:
    d = lrpca.decompose(
        Y,
        task.rank if METHODS[task.name].needs_rank else None,
        method=task.name,
        tol=task.settings.get("tol"),
        max_iter=task.settings.get("max_iter"),
        random_state=task.seed,
        callback=lambda state: look((state.L, state.R)),
        options=task.options,
    )
    found = (d.settings, d.estimated, d.diagnosis.components, d.outlier_threshold)
    return Answer((d.L, d.R), d.converged, d.reason, d.n_iter, *found)


class _StopError(Exception):
    """Ends another package's solver from inside."""


@dataclass
class _Watch:
    """Reads the iterate off another package's own variables."""

    look: Look
    variable: str
    iterations: int = 0
    last: Any = None

    def see(self, depth: int) -> None:
        """Look at the iterate of the function so many frames above; raise to end it."""
        values = sys._getframe(depth + 1).f_locals
        self.last = values[self.variable]
        if isinstance(values, dict):
            # Up to Python 3.12 this is a copy, kept with the frame, that would hold on to every old array.
            values.clear()
        self.iterations += 1
        if self.look(self.last):
            raise _StopError


class _Lines(io.TextIOBase):
    """Takes what pyrpca prints, once per iteration, and its last line, which says whether it reached its tolerance."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch
        self.converged = False

    def write(self, text: str, /) -> int:
        """Take a printed piece."""
        if text.startswith("iter "):
            self._watch.see(1)
        self.converged |= "smaller than tolerance" in text
        return len(text)


def _pyrpca(task: Task, Y: Any, look: Look) -> Answer:
    from pyrpca import rpca_pcp_ialm

    data = _floating(Y)
    if not np.isfinite(data).all():
        raise ValueError("Y has missing entries, which pyrpca does not take; leave it out")
    settings = {"sparsity_factor": 1 / float(np.sqrt(max(Y.shape))), "mu": None, "rho": 1.5}
    settings |= {"tol": _TOL, "max_iter": _MAX_ITER} | task.settings
    watch = _Watch(look, "low_rank")
    lines = _Lines(watch)
    reason = "callback"
    with contextlib.redirect_stdout(lines), contextlib.suppress(_StopError):
        watch.last = rpca_pcp_ialm(data, **settings)[0]
        reason = "tol" if lines.converged else "max_iter"
    return Answer(watch.last, reason == "tol", reason, watch.iterations, settings)


def _tensorly(task: Task, Y: Any, look: Look) -> Answer:
    from tensorly.decomposition import robust_pca

    data = _floating(Y)
    seen = np.isfinite(data)
    mask = None if seen.all() else seen.astype(data.real.dtype)
    data = data if mask is None else np.where(seen, data, 0)
    size = float(np.linalg.norm(data))
    settings = {
        # It penalises the nuclear norms of both unfoldings, which for a matrix are the same: λ counts twice.
        "reg_E": 2 / float(np.sqrt(max(Y.shape))),
        "mu_init": _TENSORLY_MU / max(_spectral_norm(data), np.finfo(float).tiny),
        "learning_rate": _TENSORLY_GROWTH if min(Y.shape) >= _SMALL else _TENSORLY_GROWTH_SMALL,
        "tol": _TOL,
        "max_iter": _MAX_ITER,
    } | task.settings
    watch = _Watch(look, "D")
    reason = "callback"
    with _hooked(watch), contextlib.suppress(_StopError):
        given = {name: settings[name] for name in ("reg_E", "mu_init", "learning_rate")}
        given |= {"tol": settings["tol"] * size, "n_iter_max": settings["max_iter"]}
        watch.last, _, errors = robust_pca(data, mask=mask, return_errors=True, verbose=0, **given)
        reason = "tol" if len(errors) < settings["max_iter"] else "max_iter"
    return Answer(watch.last, reason == "tol", reason, watch.iterations, settings)


@contextlib.contextmanager
def _hooked(watch: _Watch) -> Iterator[None]:
    """Let tensorly show its iterate whenever it thresholds, which it does once per iteration with D already new."""
    from tensorly.decomposition import robust_decomposition as module

    soft_thresholding = module.soft_thresholding

    def show(tensor: Any, threshold: Any) -> Any:
        watch.see(1)
        return soft_thresholding(tensor, threshold)

    module.soft_thresholding = show
    try:
        yield
    finally:
        module.soft_thresholding = soft_thresholding


def _sklearn(task: Task, Y: Any, look: Look) -> Answer:
    from sklearn.decomposition import PCA

    data = _floating(Y)
    seen = np.isfinite(data)
    if not seen.all():
        means = np.where(seen, data, 0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
        data = np.where(seen, data, means)
    model = PCA(task.rank, svd_solver=task.options.get("svd_solver", "auto"), random_state=task.seed)
    scores = model.fit_transform(data)
    L = np.concatenate([scores, np.ones((len(scores), 1), scores.dtype)], axis=1)
    R = np.concatenate([model.components_, model.mean_[None]]).T
    settings = {"n_components": task.rank, "svd_solver": model.svd_solver}
    return Answer((L, R), None, "no iterations", None, settings, rank=task.rank)


def _floating(Y: Any) -> Any:
    """Return the data as floating-point numbers, which the others need; a copy only where they are not."""
    if Y.dtype.kind in "fc":
        return Y
    return Y.astype(np.float32 if Y.dtype.itemsize <= 2 else np.float64)


def _spectral_norm(Y: Any) -> float:
    """Return ‖Y‖₂ by power iteration, to a few digits."""
    v = np.random.default_rng(0).standard_normal(Y.shape[1]).astype(Y.dtype)
    for _ in range(_POWER_STEPS):
        v = Y.conj().T @ (Y @ (v / max(float(np.linalg.norm(v)), np.finfo(float).tiny)))
    return float(np.sqrt(np.linalg.norm(v)))
