"""How the figures of the experiments look alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lrpca.bench.experiments.measurement import Measurement, Setup
from lrpca.bench.experiments.methods import ALTPROJ, OURS, PUBLISHED, SCALEDGD

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

# matplotlib is loaded when something is drawn.
Figure: TypeAlias = "matplotlib.figure.Figure"
# Colours of the style by family, dashes by member.
_COLOURS = {"LRPCA": "C0", SCALEDGD: "C1", ALTPROJ: "C2"}
_DASHES = {PUBLISHED: "--", f"{SCALEDGD}, γ = 1.2": "--", f"{SCALEDGD}, γ = 2": ":", f"{OURS}, own rule": ":"}
ERROR = "‖X − X*‖ / ‖X*‖"


def style_of(label: str) -> dict[str, Any]:
    """Return colour and dashes of a method's line."""
    return {"color": _COLOURS.get(label.partition(",")[0], "C3"), "linestyle": _DASHES.get(label, "-")}


def draw_range(axes: Axes, first: int, curves: Sequence[Sequence[float]], **style: Any) -> None:
    """Draw the median of curves that begin at `first`, and their range; a curve that ended keeps its last value."""
    length = max(map(len, curves))
    values = np.array([[*curve, *[curve[-1]] * (length - len(curve))] for curve in curves])
    where = np.arange(first, first + length)
    axes.plot(where, np.median(values, axis=0), **{"linewidth": 1.8, **style})
    axes.fill_between(where, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, linewidth=0)


def legend_below(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put one legend for all panels under them."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=min(3, len(entries)))


def mark_shares(axes: Axes, setup: Setup, remark: str = "") -> None:
    """Label the horizontal axis with the shares of outliers that were measured."""
    alphas = [setting.alpha for setting in setup.settings]
    axes.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
    axes.set_xlabel("α, share of outliers" + (f" ({remark})" if remark else ""))


def draw_means(
    figure: Figure, m: Measurement, value: Callable[[Measurement, str, Any], tuple[float, float]], remark: str = ""
) -> Axes:
    """Draw a value of every method against α: means, and bars of one standard deviation."""
    axes: Axes = figure.subplots()
    for label in m.labels():
        settings = m.settings_of(label)
        means, deviations = zip(*(value(m, label, setting) for setting in settings), strict=True)
        style = {"marker": "o", "markersize": 4, "linewidth": 1.6, "capsize": 4, **style_of(label)}
        axes.errorbar([setting.alpha for setting in settings], means, yerr=deviations, label=label, **style)
    mark_shares(axes, m.setup, remark)
    legend_below(figure, [axes])
    return axes
