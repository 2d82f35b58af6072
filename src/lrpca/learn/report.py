"""The training report of a model, in words and in a picture; needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lrpca import report
from lrpca.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (9.0, 3.8)


def trained_on(schedule: Schedule) -> str:
    """Return what a schedule was trained on, in a few words.

    Parameters
    ----------
    schedule : Schedule

    Examples
    --------
    >>> trained_on(Schedule([1, 1], [0, 1], meta={"source": "set by hand"}))
    'set by hand'
    """
    data = schedule.meta.get("data")
    if isinstance(data, Mapping):
        return _data_in_words(data)
    if "source" in schedule.meta:
        return str(schedule.meta["source"])
    if schedule.shape is None or schedule.rank is None:
        return "not known"
    return f"meant for rank {schedule.rank}, {_sides(schedule.shape)}"


def score_of(schedule: Schedule) -> float | None:
    """Return the score a schedule was saved with, mean log10 of its held-out errors; None if it has none."""
    scores = schedule.meta.get("scores")
    score = scores.get("score") if isinstance(scores, Mapping) else None
    return float(score) if isinstance(score, int | float) else None


def training_png(schedule: Schedule) -> bytes:
    """Return the picture of a training as a PNG file, see `draw_training`."""
    return report.figure_png(lambda figure: draw_training(schedule, figure), _SIZE)


def draw_training(schedule: Schedule, figure: Figure) -> None:
    """Draw the held-out error after each layer, before and after training, and the score against the step.

    Parameters
    ----------
    schedule : Schedule
        Made by `lrpca.learn.train`, whose scores it carries.
    figure : matplotlib.figure.Figure
        An empty one.

    Raises
    ------
    ValueError
        The schedule does not carry the scores of a training.
    """
    scores = schedule.meta.get("scores")
    if not isinstance(scores, Mapping) or not {"held_out_errors", "errors_before", "history"} <= scores.keys():
        raise ValueError(
            f"schedule={trained_on(schedule)!r} carries no scores of a training; draw one that lrpca.learn.train made"
        )
    figure.suptitle(_title(schedule), fontsize=11)
    left, right = figure.subplots(1, 2)
    _draw_layers(schedule, scores, left)
    _draw_steps(scores, right)
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_layers(schedule: Schedule, scores: Mapping[str, Any], axes: Any) -> None:
    after, before = _points(scores["held_out_errors"]), _points(scores["errors_before"] or [])
    if before:
        axes.plot(*zip(*before, strict=True), marker="o", markersize=4, linestyle="--", color="C1", label="before")
    axes.plot(*zip(*after, strict=True), marker="o", markersize=4, linewidth=1.6, color="C0", label="after training")
    axes.set_yscale("log")
    first, last = schedule.layers + 0.5, len(scores["held_out_errors"]) - 0.5
    if schedule.tail is not None and first < last:
        axes.axvspan(first, last, color="C2", alpha=0.1, linewidth=0, label="by recurrence")
    axes.set(xlabel="layer (0: the initialisation)", ylabel="held-out error")
    axes.legend()


def _draw_steps(scores: Mapping[str, Any], axes: Any) -> None:
    known = [(step, score) for step, score in scores["history"] if score is not None]
    if known:
        axes.plot(*zip(*known, strict=True), marker="o", markersize=4, linewidth=1.6, color="C0")
        axes.axhline(scores["score"], color="C2", linewidth=1.2, linestyle=":", label="the model's score")
        axes.legend()
    axes.set(xlabel="step", ylabel="score: mean log₁₀ of held-out errors")


def _points(errors: list[float | None]) -> list[tuple[int, float]]:
    return [(layer, error) for layer, error in enumerate(errors) if error is not None and error > 0]


def _title(schedule: Schedule) -> str:
    model = (schedule.meta.get("training") or {}).get("model")
    return ", ".join([*([str(model)] if model else []), schedule.kind, trained_on(schedule)])


def _data_in_words(data: Mapping[str, Any]) -> str:
    source = str(data.get("source", "data"))
    if source == "paper" and {"rank", "shape", "outlier_fraction"} <= set(data):
        return f"rank {data['rank']}, {_sides(data['shape'])}, {100 * data['outlier_fraction']:.3g}% outliers"
    if source == "mixture":
        return "planted problems of many kinds"
    count, shapes = data.get("count"), data.get("shapes") or []
    sizes = ", ".join(dict.fromkeys(_sides(shape) for shape in shapes[:3]))
    return source + (f", {count} of {sizes}" if count and sizes else "")


def _sides(shape: Any) -> str:
    return " x ".join(str(side) for side in shape)
