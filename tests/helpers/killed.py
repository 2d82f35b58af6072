"""Trainings that end in the middle."""

from collections.abc import Callable

from lrpca.learn import Progress


class KilledError(Exception):
    """Stands for a kill."""


def killed_after(evaluations: int) -> Callable[[Progress], None]:
    """Return a progress callback that ends training after so many evaluations."""
    seen: list[Progress] = []

    def progress(where: Progress) -> None:
        seen.append(where)
        if len(seen) == evaluations:
            raise KilledError

    return progress
