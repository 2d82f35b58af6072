"""The rules of the default, by name: each can be left out (``options={"without": [...]}``) to see what it brings."""

from __future__ import annotations

RULES = {
    "own_grams": "rows and columns are solved by their own Grams where some lag, entries are missing or many rejected",
    "rescue": "lost rows and columns, also in one direction only, are fitted anew, and divided fits brought together",
    "patience": "thresholds fall more slowly while a row or column lags behind",
    "significance": "components that noise alone would make are left out of X, and come back when they stand out",
    "localised": "components that live in one row or column, or on rejected entries alone, have to explain something",
    "sharpening": "at the noise floor, thresholds are lowered to three times the noise",
    "doubts": "a run whose residual holds structure or two peaks, or that leaves rows behind, has not converged",
    "second_start": "a run that ends in doubt starts again from a resistant start",
}
