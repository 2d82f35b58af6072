"""The methods that can be compared, those of this library and others from PyPI; how one is written, and how it runs.

A method is a name with settings, ``accaltproj:gamma=0.5,beta=0.01``. Several are separated by commas or spaces; what
has an equals sign and no colon belongs to the method before it.

The solvers from PyPI have no callback. pyrpca prints a line in every iteration and tensorly calls its own
`soft_thresholding`; from there their iterate is read, by reference and without a copy. Nothing of them is changed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

import lrpca
from lrpca.solvers.methods import METHODS
from lrpca.solvers.options import Check, check_options, choice, integer, number, read_method

# Called with an iterate, as factors (L, R) or as a matrix; True asks to stop.
Callback = Callable[[Any], bool]
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


OTHERS = {
    "pyrpca": OtherMethod(
        "pyrpca: principal component pursuit by inexact ALM, its defaults, λ = 1/√max(n1, n2)",
        "pyrpca",
        {"sparsity_factor": number(above=0), "mu": number(above=0), "rho": number(above=1)},
    ),
    "tensorly": OtherMethod(
        "tensorly.decomposition.robust_pca, set to converge fastest",
        "tensorly",
        {"reg_E": number(above=0), "mu_init": number(above=0), "learning_rate": number(above=1)},
    ),
    "sklearn": OtherMethod(
        "scikit-learn's PCA, for comparison: not robust, columns centred, missing entries set to their column's mean",
        "scikit-learn",
        {"svd_solver": choice("auto", "full", "covariance_eigh", "arpack", "randomized")},
        iterates=False,
    ),
}

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
    reads: float | None = None  # passes over Y, where it counts them


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


def solve(task: Task, Y: Any, callback: Callback) -> Answer:
    """Run a method on a matrix, showing each iterate to `callback`."""
    if task.name in METHODS:
        return _ours(task, Y, callback)
    run = {"pyrpca": _pyrpca, "tensorly": _tensorly, "sklearn": _sklearn}[task.name]
    return run(task, Y.astype(floating(Y.dtype), copy=False), callback)


def _ours(task: Task, Y: Any, callback: Callback) -> Answer:
    d = lrpca.decompose(
        Y,
        task.rank if METHODS[task.name].needs_rank else None,
        method=task.name,
        tol=task.settings.get("tol"),
        max_iter=task.settings.get("max_iter"),
        random_state=task.seed,
        callback=lambda state: callback((state.L, state.R)),
        options=task.options,
    )
    found = (d.settings, d.estimated, d.diagnosis.components, d.outlier_threshold, d.n_reads)
    return Answer((d.L, d.R), d.converged, d.reason, d.n_iter, *found)


class _StopError(Exception):
    """Ends another package's solver from inside."""


@dataclass
class _Watch:
    """Reads the iterate off another package's own variables."""

    callback: Callback
    variable: str
    iterations: int = 0
    last: Any = None

    def see(self) -> None:
        """Show the iterate of the function that called the caller; raise to end it."""
        values = sys._getframe(2).f_locals
        self.last = values[self.variable]
        if isinstance(values, dict):
            # Up to Python 3.12 this is a copy, kept with the frame, that would hold on to every old array.
            values.clear()
        self.iterations += 1
        if self.callback(self.last):
            raise _StopError


def _pyrpca(task: Task, data: Any, callback: Callback) -> Answer:
    from pyrpca import pcp_ialm

    if not np.isfinite(data).all():
        raise ValueError("Y has missing entries, which pyrpca does not take; leave it out")
    settings = {"sparsity_factor": 1 / float(np.sqrt(max(data.shape))), "mu": None, "rho": 1.5}
    settings |= {"tol": _TOL, "max_iter": _MAX_ITER} | task.settings
    watch, reason = _Watch(callback, "low_rank"), "callback"
    printed = [""]

    def show(text: str) -> None:
        printed.append(text)
        if text.startswith("iter "):
            watch.see()

    with patch.object(pcp_ialm, "print", show, create=True), contextlib.suppress(_StopError):
        watch.last = pcp_ialm.rpca_pcp_ialm(data, **settings)[0]
        reason = "tol" if "smaller than tolerance" in printed[-1] else "max_iter"
    return Answer(watch.last, reason == "tol", reason, watch.iterations, settings)


def _tensorly(task: Task, data: Any, callback: Callback) -> Answer:
    from tensorly.decomposition import robust_decomposition as module

    seen = np.isfinite(data)
    mask = None if seen.all() else seen.astype(data.real.dtype)
    data = data if mask is None else np.where(seen, data, 0)
    size = float(np.linalg.norm(data))
    settings = {
        # It penalises the nuclear norms of both unfoldings, which for a matrix are the same: λ counts twice.
        "reg_E": 2 / float(np.sqrt(max(data.shape))),
        "mu_init": _TENSORLY_MU / max(_spectral_norm(data), np.finfo(float).tiny),
        "learning_rate": _TENSORLY_GROWTH if min(data.shape) >= _SMALL else _TENSORLY_GROWTH_SMALL,
        "tol": _TOL,
        "max_iter": _MAX_ITER,
    } | task.settings
    watch, reason = _Watch(callback, "D"), "callback"
    soft_thresholding = module.soft_thresholding

    def show(tensor: Any, threshold: Any) -> Any:
        # It thresholds once per iteration, with D already new.
        watch.see()
        return soft_thresholding(tensor, threshold)

    with patch.object(module, "soft_thresholding", show), contextlib.suppress(_StopError):
        given = {name: settings[name] for name in ("reg_E", "mu_init", "learning_rate")}
        given |= {"tol": settings["tol"] * size, "n_iter_max": settings["max_iter"]}
        watch.last, _, errors = module.robust_pca(data, mask=mask, return_errors=True, verbose=0, **given)
        reason = "tol" if len(errors) < settings["max_iter"] else "max_iter"
    return Answer(watch.last, reason == "tol", reason, watch.iterations, settings)


def _sklearn(task: Task, data: Any, callback: Callback) -> Answer:
    from sklearn.decomposition import PCA

    data = filled_by_means(data)
    model = PCA(task.rank, svd_solver=task.options.get("svd_solver", "auto"), random_state=task.seed)
    scores = model.fit_transform(data)
    L = np.concatenate([scores, np.ones((len(scores), 1), scores.dtype)], axis=1)
    R = np.concatenate([model.components_, model.mean_[None]]).T
    settings = {"n_components": task.rank, "svd_solver": model.svd_solver}
    return Answer((L, R), None, "no iterations", None, settings, rank=task.rank)


def filled_by_means(Y: Any) -> Any:
    """Return the data with the mean of its column in place of each missing entry."""
    seen = np.isfinite(Y)
    return Y if seen.all() else np.where(seen, Y, np.where(seen, Y, 0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1))


def floating(dtype: Any) -> Any:
    """Return the type of floating-point numbers in which data of a type are computed with."""
    return dtype if dtype.kind in "fc" else np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)


def _spectral_norm(Y: Any) -> float:
    """Return ‖Y‖₂ by power iteration, to a few digits."""
    v = np.random.default_rng(0).standard_normal(Y.shape[1]).astype(Y.dtype)
    for _ in range(_POWER_STEPS):
        v = Y.conj().T @ (Y @ (v / max(float(np.linalg.norm(v)), np.finfo(float).tiny)))
    return float(np.sqrt(np.linalg.norm(v)))
