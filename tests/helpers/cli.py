"""Commands as a user meets them."""

import os
import subprocess
import sys

import numpy as np
import pytest

Capsys = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Run ``lrpca`` as a process of its own."""
    command, pipe = [sys.executable, "-m", "lrpca", *arguments], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | environment)


def error_line(capsys: Capsys, *words: str) -> str:
    """Return the one line that a command printed, to standard error; it has these words."""
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("lrpca: ") and err.count("\n") == 1 and all(word in err for word in words), err
    return err


def planted(rows: int, rank: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return X of this rank and 150 columns, and Y, which is X with every twelfth entry spoiled."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, 150))
    return X, X + 3 * rng.choice([-1, 1], X.shape) * (rng.random(X.shape) < 1 / 12)
