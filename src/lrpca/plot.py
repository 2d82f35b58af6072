"""Pictures of a decomposition. Needs matplotlib: ``pip install lrpca[plot]``.

Every function draws into the axes it is given (``ax=``) or makes new ones, and returns the artists it made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from lrpca.core.extras import require
from lrpca.matrices.accept_tensor import on_host

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.patches import StepPatch

    from lrpca.decomposition.result import Decomposition

__all__ = ["convergence", "residual_histogram", "style"]

LABELS = {
    "change": "relative change of L Rᵀ",
    "residual": "relative residual",
    "threshold": "threshold",
    "step": "step size",
    "kept": "share of entries kept",
}
LOGARITHMIC = ("change", "residual", "threshold")  # where they range over more than a decade or so
# Bins of a histogram, and entries in it, which are drawn at random.
BINS, SAMPLED = 121, 200_000


def convergence(
    decompositions: Decomposition | Mapping[str, Decomposition],
    *,
    quantity: str = "change",
    against: str = "iteration",
    ax: Axes | None = None,
) -> list[Line2D]:
    """Draw the history of one or several decompositions, iteration by iteration.

    Parameters
    ----------
    decompositions : Decomposition or mapping of names to Decompositions
        One line is drawn for each.
    quantity : {"change", "residual", "threshold", "step", "kept"}
        Which number of the history. Iterations in which a method has no such number are left out.
    against : {"iteration", "seconds"}
        Horizontal axis: the count of iterations, or the time since the first one began.
    ax : matplotlib.axes.Axes, optional
        Where to draw; new axes by default.

    Returns
    -------
    list of matplotlib.lines.Line2D
        One line for each decomposition.

    Examples
    --------
    >>> import lrpca
    >>> d = lrpca.decompose(lrpca.testing.planted().Y, rank=5)
    >>> lines = lrpca.plot.convergence(d)
    >>> len(lines)
    1
    """
    if quantity not in LABELS:
        raise ValueError(f"quantity={quantity!r} is not in a history; use one of {', '.join(LABELS)}")
    if against not in ("iteration", "seconds"):
        raise ValueError(f"against={against!r} is not an axis; use 'iteration' or 'seconds'")
    named = decompositions if isinstance(decompositions, Mapping) else {"": decompositions}
    axes = _axes(ax)
    lines: list[Line2D] = []
    for name, decomposition in named.items():
        history = decomposition.history
        elapsed = np.cumsum([record.seconds or 0.0 for record in history])
        places = [record.iteration for record in history] if against == "iteration" else elapsed
        drawn = [
            (x, y) for x, record in zip(places, history, strict=True) if (y := getattr(record, quantity)) is not None
        ]
        where, values = np.array(drawn, float).reshape(-1, 2).T
        lines += axes.plot(where, values, marker="o", markersize=4, linewidth=1.6, label=name or None)
    heights = np.concatenate([np.asarray(line.get_ydata(), float) for line in lines] or [np.empty(0)])
    positive = heights[heights > 0]
    if quantity in LOGARITHMIC and positive.size and positive.max() > 20 * positive.min():
        axes.set_yscale("log")
    if against == "iteration":
        _count_whole(axes)
    axes.set(xlabel=against, ylabel=LABELS[quantity])
    if any(named):
        axes.legend()
    return lines


def residual_histogram(
    Y: ArrayLike, decomposition: Decomposition, *, ax: Axes | None = None
) -> tuple[StepPatch, list[Line2D]]:
    """Draw the distribution of the residual ``Y - L Rᵀ`` and the threshold that makes an entry an outlier.

    Parameters
    ----------
    Y : array_like, shape (n1, n2)
        The matrix that was decomposed. Missing entries (nan) are left out.
    decomposition : Decomposition
        Its decomposition.
    ax : matplotlib.axes.Axes, optional
        Where to draw; new axes by default.

    Returns
    -------
    StepPatch, list of matplotlib.lines.Line2D
        The histogram and the lines at the threshold (its median, if entries have their own). Residuals beyond
        four thresholds count but are not drawn; those of complex data are drawn by their modulus.

    Examples
    --------
    >>> import lrpca
    >>> Y = lrpca.testing.planted().Y
    >>> patch, lines = lrpca.plot.residual_histogram(Y, lrpca.decompose(Y, rank=5))
    """
    Y = on_host(Y)
    if isinstance(Y, np.ma.MaskedArray):
        Y = np.ma.filled(Y.astype(np.result_type(Y.dtype, np.float32)), np.nan)
    data = np.asarray(Y)
    shape = len(decomposition.L), len(decomposition.R)
    if data.shape != shape:
        raise ValueError(f"Y.shape={data.shape} is not {shape}; pass the matrix that was decomposed")
    rng = np.random.default_rng(0)
    i, j = (rng.integers(n, size=SAMPLED) for n in data.shape)
    fit = np.einsum("kr,kr->k", on_host(decomposition.L)[i], on_host(decomposition.R)[j])
    residual = data[i, j].astype(fit.dtype) - fit
    signed = not np.iscomplexobj(residual)
    residual = residual[np.isfinite(residual)] if signed else np.abs(residual[np.isfinite(residual)])
    threshold = float(np.median(decomposition.outlier_threshold))
    reach = 4 * threshold if threshold > 0 else max(float(np.abs(residual).max(initial=0)), 1.0)
    limits = (-reach if signed else 0, reach)
    counts, edges = np.histogram(residual, bins=BINS, range=limits)
    axes = _axes(ax)
    patch = axes.stairs(counts / max(1, residual.size), edges, fill=True, alpha=0.8)
    axes.set_yscale("log")
    sides = (-threshold, threshold) if signed else (threshold,)
    lines = [axes.axvline(side, color="C1", linewidth=1.4, linestyle="--") for side in sides]
    lines[-1].set_label(f"outlier threshold ±{threshold:.3g}" if signed else f"outlier threshold {threshold:.3g}")
    axes.set(xlabel="residual", ylabel="share of entries")
    axes.legend()
    return patch, lines


@contextmanager
def style(*, dark: bool = False) -> Iterator[None]:
    """Use the look of the library's own reports for figures made inside the block.

    Parameters
    ----------
    dark : bool
        Light lines on a transparent ground, for dark pages, instead of dark lines on white.

    Examples
    --------
    >>> from matplotlib import pyplot
    >>> from lrpca import plot
    >>> with plot.style():
    ...     axes = pyplot.subplots()[1]
    """
    require_matplotlib()
    import matplotlib
    from cycler import cycler

    ink, faint = ("#d7dde6", "#3a4453") if dark else ("#1f2733", "#d5dbe3")
    lines = ("#6ea8fe", "#ffb454", "#5fd3a5", "#f48fb1") if dark else ("#2563eb", "#d9730d", "#0f8a5f", "#c2357a")
    colours = {
        ink: ("axes.labelcolor", "axes.titlecolor", "legend.labelcolor", "text.color", "xtick.color", "ytick.color"),
        faint: ("axes.edgecolor", "grid.color"),
    }
    settings: Any = {name: colour for colour, names in colours.items() for name in names}
    settings |= dict.fromkeys(("axes.grid", "axes.axisbelow"), True)
    settings |= dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon"), False)
    settings |= {"axes.facecolor": "none", "figure.facecolor": "none" if dark else "white"}
    settings |= {"axes.prop_cycle": cycler(color=lines), "axes.titlesize": 11, "font.size": 10, "grid.linewidth": 0.6}
    with matplotlib.rc_context(settings):
        yield


def require_matplotlib() -> None:
    """Raise an ImportError that says what to install, if matplotlib is missing."""
    require("matplotlib", "plot", "plots need matplotlib, which is not installed")


def _count_whole(axes: Axes) -> None:
    """Label only whole numbers on the horizontal axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    require_matplotlib()
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]
