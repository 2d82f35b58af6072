"""The rules of the default, by name: each can be left out (``options={"without": [...]}``) to see what it brings."""

RULES = {
    "row_normal_equations": "each row and column is solved by itself where entries are missing or many are rejected",
    "patience": "thresholds fall more slowly while a row or column keeps far fewer entries than the others",
    "significance": "components that noise alone would make are left out of X, and come back when they exceed it",
    "low_inlier_rows": "rows and columns that keep few entries are refitted",
    "unsupported_directions": "rejected entries are tried where few entries say what a coefficient is",
    "residual_structure": "a run whose residual holds structure, or that has unexplained rows, has stalled",
    "other_fits": "a fit that may be wrong is compared with others, and has to be found again from half of the data",
    "refine_cutoff": "at the noise floor, thresholds are lowered to three times the noise",
}
