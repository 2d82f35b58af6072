"""How the figures of the experiments look alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lrpca.bench.experiments.entrants import ALTPROJ, OURS, PUBLISHED, SCALEDGD

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours of the style by family, dashes by member.
_COLOURS = {"LRPCA": "C0", SCALEDGD: "C1", ALTPROJ: "C2"}
_DASHES = {
    OURS: "-",
    PUBLISHED: "--",
    f"{SCALEDGD}, γ = 1.2": "--",
    f"{SCALEDGD}, γ = 2": ":",
    f"{OURS}, own rule": ":",
}


def look(label: str) -> dict[str, Any]:
    """Return colour and dashes of a contestant's line."""
    family = label.partition(",")[0]
    return {"color": _COLOURS.get(family, "C3"), "linestyle": _DASHES.get(label, "-")}


def legend_below(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put one legend for all panels under them."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=min(3, len(entries)))


def mark_shares(axes: Axes, alphas: Sequence[float], remark: str = "") -> None:
    """Label the horizontal axis with the shares of outliers that were measured."""
    axes.set_xticks(list(alphas), [f"{alpha:g}" for alpha in alphas])
    axes.set_xlabel("α, share of outliers" + (f" ({remark})" if remark else ""))


def draw_error_bars(
    axes: Axes,
    label: str,
    points: Sequence[tuple[float, float, float]],  # α, mean, standard deviation
) -> None:
    """Draw means with error bars of one standard deviation against α."""
    where, means, deviations = zip(*points, strict=True)
    style = look(label)
    axes.errorbar(
        where, means, yerr=deviations, label=label, marker="o", markersize=4, linewidth=1.6, capsize=4, **style
    )
