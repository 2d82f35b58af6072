"""How the figures of the experiments look alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lrpca.bench.experiments.measurement import Measurement
from lrpca.bench.experiments.methods import ALTPROJ, OURS, PUBLISHED, SCALEDGD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours of the style by family, dashes by member.
_COLOURS = {"LRPCA": "C0", SCALEDGD: "C1", ALTPROJ: "C2"}
_DASHES = {PUBLISHED: "--", f"{SCALEDGD}, γ = 1.2": "--", f"{SCALEDGD}, γ = 2": ":", f"{OURS}, own rule": ":"}


def look(label: str) -> dict[str, Any]:
    """Return colour and dashes of a method's line."""
    return {"color": _COLOURS.get(label.partition(",")[0], "C3"), "linestyle": _DASHES.get(label, "-")}


def legend_below(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put one legend for all panels under them."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=min(3, len(entries)))


def mark_shares(axes: Axes, alphas: Sequence[float], remark: str = "") -> None:
    """Label the horizontal axis with the shares of outliers that were measured."""
    axes.set_xticks(list(alphas), [f"{alpha:g}" for alpha in alphas])
    axes.set_xlabel("α, share of outliers" + (f" ({remark})" if remark else ""))


def draw_means(
    figure: Figure, m: Measurement, value: Callable[[Measurement, str, float], tuple[float, float]], remark: str = ""
) -> Axes:
    """Draw a value of every method against α: means, and bars of one standard deviation."""
    axes: Axes = figure.subplots()
    for label in m.labels():
        alphas = [alpha for alpha in m.setup.alphas if m.of(label, alpha)]
        means, deviations = zip(*(value(m, label, alpha) for alpha in alphas), strict=True)
        style = {"marker": "o", "markersize": 4, "linewidth": 1.6, "capsize": 4, **look(label)}
        axes.errorbar(alphas, means, yerr=deviations, label=label, **style)
    mark_shares(axes, m.setup.alphas, remark)
    legend_below(figure, [axes])
    return axes
