"""The methods that can be compared: those of this library, others from PyPI, and how one is written down.

A method is a name with settings, ``accaltproj:gamma=0.5,beta=0.01``. Several are separated by commas or spaces; what
has an equals sign and no colon belongs to the method before it.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lrpca.solvers.methods import METHODS
from lrpca.solvers.options import Check, check_options, choice, integer, number
from lrpca.solvers.spelling import read_method

# What every method can be told, beside its own options.
COMMON: dict[str, Check] = {"tol": number(least=0, below=1), "max_iter": integer(1)}


@dataclass(frozen=True)
class Rival:
    """A solver from PyPI."""

    name: str
    title: str
    package: str  # what to install
    tol: float  # unless told otherwise
    max_iter: int | None  # unless told otherwise; None if it does not iterate
    options: Mapping[str, Check]

    def version(self) -> str | None:
        """Return the version that is installed, if any."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


_RIVALS = (
    Rival(
        "pyrpca",
        "pyrpca: principal component pursuit by inexact ALM, its defaults, λ = 1/√max(n1, n2)",
        "pyrpca",
        tol=1e-7,
        max_iter=1000,
        options={"sparsity_factor": number(above=0), "mu": number(above=0), "rho": number(above=1)},
    ),
    Rival(
        "tensorly",
        "tensorly.decomposition.robust_pca, set to converge fastest",
        "tensorly",
        tol=1e-7,
        max_iter=1000,
        options={"reg_E": number(above=0), "mu_init": number(above=0), "learning_rate": number(above=1)},
    ),
    Rival(
        "sklearn",
        "scikit-learn's PCA, the floor: not robust, columns centred, missing entries set to their column's mean",
        "scikit-learn",
        tol=0.0,
        max_iter=None,
        options={"svd_solver": choice("auto", "full", "covariance_eigh", "arpack", "randomized")},
    ),
)
RIVALS: dict[str, Rival] = {rival.name: rival for rival in _RIVALS}

# Those that run for "all": every method, some at several values of an option, and the solvers from PyPI.
ALL = (
    *("lrpca", "sampled", "ircur"),
    *("accaltproj:gamma=0.5", "accaltproj:gamma=0.7", "accaltproj:gamma=0.9"),
    "scaledgd",
    *("altproj:variant=paper", "altproj:variant=ncrpca"),
    *("gd", "gd:sample=0.2"),
    *("pcp:algorithm=ialm", "pcp:algorithm=admm"),
    *("stable_pcp", "pgrmc", "godec"),
    *("grassmann", "grassmann:trim=0"),
    *RIVALS,
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
    def rival(self) -> Rival | None:
        """The solver from PyPI, if it is one."""
        return RIVALS.get(self.name)

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        return self.rival.title if self.rival else METHODS[self.name].title


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
    if name not in METHODS and name not in RIVALS:
        raise ValueError(f"methods={name!r} is unknown; use all, or some of {_known()}")
    return Spec(text, name, check_options(given, {**options_of(name), **COMMON}, name))


def options_of(name: str) -> Mapping[str, Check]:
    """Return the checks of a method's own options."""
    return RIVALS[name].options if name in RIVALS else METHODS[name].options


def _known() -> str:
    return ", ".join([*METHODS, *RIVALS])
