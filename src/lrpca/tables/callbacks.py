"""scikit-learn's callback protocol, where the installed version has it; it is experimental there, so it is kept here.

An estimator inherits `CallbackSupport`, decorates `fit` with `with_callbacks`, and hands the solver what
`solver_callback` returns: each iteration is one task below that of the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["FRAMES", "CallbackSupport", "FitProgress", "with_callbacks"]

try:
    from sklearn.callback import CallbackSupportMixin as CallbackSupport
    from sklearn.callback import with_callbacks

    # Frames that the decorator puts between a method and its caller.
    FRAMES = 1
except ImportError:  # before scikit-learn 1.9
    FRAMES = 0

    class CallbackSupport:  # type: ignore[no-redef]
        """Nothing to support."""

    def with_callbacks(method: Any) -> Any:
        """Return the method as it is."""
        return method


class FitProgress:
    """The tasks of one fit: the fit itself, and an iteration at a time below it.

    Parameters
    ----------
    estimator : estimator
    X : array-like
        The training data.
    max_iter : int or None
        Most iterations, if known.
    attributes : callable
        Returns the fitted attributes that a state of the solver amounts to.
    """

    def __init__(
        self, estimator: Any, X: Any, max_iter: int | None, attributes: Callable[[Any], dict[str, Any]]
    ) -> None:
        self._estimator, self._X, self._attributes = estimator, X, attributes
        self._fit: Any = None
        if getattr(estimator, "_skl_callbacks", None):
            self._fit = estimator._init_callback_context(max_subtasks=max_iter)
            self._fit.call_on_fit_task_begin(estimator=estimator, X=X)

    @property
    def solver_callback(self) -> Callable[[Any], bool] | None:
        """What to give the solver; None where nobody listens, since states are copied for a callback."""
        return None if self._fit is None else self._after_iteration

    def _after_iteration(self, state: Any) -> bool:
        task = self._fit.subcontext(task_name="iteration")
        task.call_on_fit_task_begin(estimator=self._estimator, X=self._X)
        stop = task.call_on_fit_task_end(
            estimator=self._estimator, X=self._X, reconstruction_attributes=lambda: self._attributes(state)
        )
        return bool(stop)

    def end(self) -> None:
        """Say that the fit is done."""
        if self._fit is not None:
            self._fit.call_on_fit_task_end(estimator=self._estimator, X=self._X)
