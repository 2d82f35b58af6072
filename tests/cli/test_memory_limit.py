"""Under a limit on memory (``ulimit -v``) the command does its work or says that it is too little; it never hangs."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lrpca
from lrpca.cli.exit_codes import ExitCode
from lrpca.cli.memory_limit import LIBRARIES
from lrpca.core.environment import THREAD_VARIABLES

pytest.importorskip("typer", reason="needs the extra cli")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold a process to its limit")

PROBLEM = lrpca.testing.planted((200, 150), rank=3, outlier_fraction=0.1)


def run(limit: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python under a limit in kB, without variables that name a number of threads."""
    environment = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1024 * limit, 1024 * limit)),
    )


def decompose(limit: int, *more: str) -> "subprocess.CompletedProcess[str]":
    return run(limit, "-m", "lrpca", "decompose", "Y.npy", "--rank", "3", "-o", "out.npz", "--quiet", *more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("Y.npy", PROBLEM.Y)
    return tmp_path


# With less than about 600000 the libraries hang, abort, or fail in words of their own.
@pytest.mark.parametrize("limit", [100_000, 480_000, 620_000])
def test_too_little_for_the_libraries(folder: Path, limit: int) -> None:
    done = decompose(limit)
    message = f"lrpca: ulimit -v={limit} leaves less than {LIBRARIES} kB for the libraries; raise it\n"
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.FAILED, "", message)
    assert [file.name for file in folder.iterdir()] == ["Y.npy"]


def test_little_is_enough(folder: Path) -> None:
    done = decompose(1_000_000)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.DONE, "", "")
    assert PROBLEM.error(lrpca.Decomposition.load("out.npz").low_rank) < 1e-6


def test_too_little_for_training(folder: Path) -> None:
    pytest.importorskip("torch")
    done = run(1_000_000, "-m", "lrpca", "train", "-o", "model.json")
    assert done.returncode == ExitCode.FAILED and done.stderr.count("\n") == 1
    assert done.stderr.startswith("lrpca: ulimit -v=1000000 leaves less than ") and "for PyTorch" in done.stderr


@pytest.mark.parametrize("more", [(), ("Y.npy",)])
def test_too_little_for_the_matrix(folder: Path, more: tuple[str, ...]) -> None:
    # Not written, so not on the disk.
    np.lib.format.open_memmap(
        "Y.npy", mode="w+", dtype=np.float32, shape=(1_000_000, 1000)
    ).flush()  # holes on the disk
    done = decompose(1_000_000, *more)
    message = "lrpca: out of memory (too little memory to map 'Y.npy'); give it more, or less to do\n"
    assert (done.returncode, done.stderr) == (ExitCode.FAILED, message)


@pytest.mark.parametrize(("limit", "threads"), [(800_000, "1"), (1_000_000_000, "None")])
def test_threads_where_there_is_room_for_them(limit: int, threads: str) -> None:
    names = ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    code = "import os; from lrpca.cli.memory_limit import load_within_limit as l; l(); print(*map(os.environ.get, {}))"
    assert run(limit, "-c", code.format(names)).stdout == f"{threads} {threads}\n"
