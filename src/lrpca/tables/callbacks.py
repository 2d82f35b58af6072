"""scikit-learn's callback protocol, which is experimental there, where the installed version has it."""

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
    """The tasks of one fit: the fit itself, and each iteration below it.

    `solver_callback` is what the solver is to be given: None without callbacks, since states are copied for it.
    `attributes` returns the fitted attributes that a state of the solver amounts to.
    """

    def __init__(
        self, estimator: Any, X: Any, max_iter: int | None, attributes: Callable[[Any], dict[str, Any]]
    ) -> None:
        self._told: dict[str, Any] = {"estimator": estimator, "X": X}
        self._attributes = attributes
        self._fit: Any = None
        self.solver_callback: Callable[[Any], bool] | None = None
        if getattr(estimator, "_skl_callbacks", None):
            self._fit = estimator._init_callback_context(max_subtasks=max_iter)
            self._fit.call_on_fit_task_begin(**self._told)
            self.solver_callback = self._after_iteration

    def _after_iteration(self, state: Any) -> bool:
        task = self._fit.subcontext(task_name="iteration")
        task.call_on_fit_task_begin(**self._told)
        return bool(task.call_on_fit_task_end(**self._told, reconstruction_attributes=lambda: self._attributes(state)))

    def end(self) -> None:
        """Say that the fit is done."""
        if self._fit is not None:
            self._fit.call_on_fit_task_end(**self._told)
