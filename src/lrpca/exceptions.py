"""The warnings a decomposition can raise."""


class ConvergenceWarning(UserWarning):
    """The iteration ended without reaching its tolerance or the noise floor; the message says why and what to do."""


class DiagnosisWarning(UserWarning):
    """The result is legitimate but unusual (no outliers at all, nothing but outliers, rows without influence)."""
