"""The base training on a device and on the processor: seconds, and how far their numbers are apart.

    python benchmarks/gpu_training.py [--device cuda] [--form adaptive] [--repeats 2]

Rank 5, 1000 x 1000, a tenth of outliers: what ``lrpca train`` does unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any


def run(device: str, *, form: str = "adaptive", repeats: int = 2) -> dict[str, Any]:
    """Train on a device and on the processor, in this process.

    Parameters
    ----------
    device : str
        E.g. "cuda"; "cpu" compares the processor with itself.
    form : {"adaptive", "paper"}
    repeats : int
        Trainings on each; the first one includes all that is done once in a process.

    Returns
    -------
    dict
        first_seconds: the first training on the device, with loading torch, starting the device and compiling.
        seconds, cpu_seconds: the fastest of the others (of all, if there is but one). difference: the largest relative
        difference of thresholds and steps. scores: of device and processor.
    """
    began = time.perf_counter()
    from lrpca.learn import train

    imported = time.perf_counter() - began
    there, here = [], []
    for _ in range(repeats):
        model, seconds = _timed(train, form, device)
        there.append(seconds)
    for _ in range(repeats):
        reference, seconds = _timed(train, form, "cpu")
        here.append(seconds)
    return {
        "device": device,
        "form": form,
        "import_seconds": imported,
        "first_seconds": imported + there[0],
        "seconds": min(there[1:] or there),
        "cpu_seconds": min(here[1:] or here),
        "difference": _difference(model, reference),
        "scores": [model.meta["scores"]["score"], reference.meta["scores"]["score"]],
        "thresholds": list(model.thresholds),
    }


def _timed(train: Any, form: str, device: str) -> tuple[Any, float]:
    began = time.perf_counter()
    model = train(rank=5, shape=(1000, 1000), outlier_fraction=0.1, form=form, device=device)
    return model, time.perf_counter() - began


def _difference(one: Any, other: Any) -> float:
    """Return the largest relative difference of thresholds, steps and tail."""
    pairs = [(one.thresholds, other.thresholds), (one.steps[1:], other.steps[1:]), (one.tail or (), other.tail or ())]
    return max(abs(a - b) / abs(b) for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))


def main(given: Sequence[str] | None = None) -> None:
    """Parse the command line, run, and print what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="where to train (default: %(default)s)")
    parser.add_argument("--form", default="adaptive", choices=("adaptive", "paper"), help="(default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="trainings on each (default: %(default)s)")
    chosen = parser.parse_args(given)
    print(json.dumps(run(chosen.device, form=chosen.form, repeats=max(1, chosen.repeats)), indent=1))


if __name__ == "__main__":
    main()
