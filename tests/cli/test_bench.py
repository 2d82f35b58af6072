"""`lrpca bench` as a user meets it."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from lrpca.cli import ExitCode, main
from lrpca.testing import planted
from tests.helpers.cli import Capsys, Patch, error_line, start

pytest.importorskip("typer", reason="needs the extra cli")
pytest.importorskip("matplotlib", reason="needs the extra plot")

QUICK = ("--threads", "1", "--time-limit", "30")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Return a working directory with a matrix and its truth."""
    monkeypatch.chdir(tmp_path)
    problem = planted((120, 90), rank=2)
    np.save("Y.npy", problem.Y)
    np.save("X.npy", problem.X)
    return tmp_path


def bench(*arguments: str) -> int:
    return main(["bench", *arguments, *QUICK])


def test_a_planted_problem(folder: Path, capsys: Capsys) -> None:
    made = ("--shape", "150x110", "--rank", "2", "--outliers", "0.2", "--dtype", "float32", "--seed", "3")
    assert bench(*made, "--methods", "lrpca:tol=1e-5,sklearn", "-o", "out", "--target", "0.01") == ExitCode.DONE
    out, err = capsys.readouterr()
    assert "150 x 110" in out and "to 0.01" in out and "lrpca:tol=1e-5" in out and "out/index.html" in out
    assert "1 of 2: lrpca:tol=1e-5" in err and "2 of 2: sklearn" in err and "Traceback" not in out + err
    stored = json.loads((folder / "out" / "arena.json").read_text())
    first, second = stored["entries"]
    assert stored["problem"]["dtype"] == "float32" and stored["problem"]["outlier_fraction"] == pytest.approx(0.2)
    assert first["spec"] == "lrpca:tol=1e-5" and first["settings"]["tol"] == 1e-5 and first["error"] < 1e-4
    assert second["error"] > 0.01 and second["seconds_to_target"] is None
    assert sorted(os.listdir("out")) == ["arena.csv", "arena.json", "convergence.png", "index.html"]


def test_a_file_with_its_truth(folder: Path, capsys: Capsys) -> None:
    command = ("Y.npy", "--rank", "2", "-m", "lrpca", "-o", "new/out", "--truth", "X.npy", "-q")
    assert bench(*command) == ExitCode.DONE
    assert capsys.readouterr().out == ""
    assert json.loads(Path("new/out/arena.json").read_text())["entries"][0]["error"] < 1e-6
    assert bench(*command) == ExitCode.OUTPUT
    assert "--force" in capsys.readouterr().err
    assert bench(*command, "--force") == ExitCode.DONE


def test_rows_that_fail_are_a_result_but_not_if_all_do(folder: Path, capsys: Capsys) -> None:
    Y = np.load("Y.npy")
    Y[3, 4] = np.nan
    np.save("Y.npy", Y)
    assert bench("Y.npy", "--rank", "2", "-m", "pyrpca", "-o", "out") == ExitCode.NOT_CONVERGED
    assert "failed: ValueError: Y has missing entries" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-m", "nosuch"), ExitCode.USAGE, ("methods='nosuch'", "accaltproj", "pyrpca")),
        (("-m", "lrpca:gamma=1"), ExitCode.USAGE, ("'gamma'", "power_steps")),
        (("--n", "4", "--rank", "5"), ExitCode.USAGE, ("rank=5", "min(shape)=4")),
        (("--n", "40", "--shape", "40x30"), ExitCode.USAGE, ("--n=40", "--shape=40x30")),
        (("--shape", "40by30"), ExitCode.USAGE, ("shape='40by30'", "2000x500")),
        (("--n", "40", "--outliers", "2"), ExitCode.USAGE, ("outlier_fraction=2",)),
        (("--n", "40", "--dtype", "int8"), ExitCode.USAGE, ("dtype='int8'", "float32")),
        (("--n", "40", "--truth", "X.npy"), ExitCode.USAGE, ("--truth=X.npy", "FILE")),
        (("-m", "lrpca:tol"), ExitCode.USAGE, ("lrpca:option=value",)),
        (("Y.npy", "--rank", "2", "--noise", "0.1"), ExitCode.USAGE, ("--noise=0.1", "FILE")),
        (("Y.npy",), ExitCode.USAGE, ("--rank=None", "FILE", "give --rank N")),
        (("Y.npy", "--rank", "100"), ExitCode.INPUT, ("rank=100", "90")),
        (("none.npy", "--rank", "2"), ExitCode.INPUT, ("none.npy", "does not exist")),
        (("Y.npy", "--rank", "2", "-o", "X.npy/such"), ExitCode.OUTPUT, ("X.npy/such", "to be a folder")),
        (("Y.npy", "--rank", "2", "-o", "X.npy"), ExitCode.OUTPUT, ("X.npy", "to be a folder")),
        (("Y.npy", "--rank", "2", "--memory-limit", "0"), ExitCode.USAGE, ("memory_limit=0",)),
        (("Y.npy", "--rank", "2", "--target", "-1"), ExitCode.USAGE, ("target=-1",)),
        (("Y.npy", "--rank", "2", "--tol", "2"), ExitCode.USAGE, ("tol=2.0",)),
    ],
)
def test_bad_usage_is_one_line_before_any_work(
    folder: Path, capsys: Capsys, arguments: tuple[str, ...], code: ExitCode, words: tuple[str, ...]
) -> None:
    assert bench(*arguments) == code
    error_line(capsys, *words)
    assert sorted(os.listdir()) == ["X.npy", "Y.npy"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_contestant_and_leaves_nothing(folder: Path, number: signal.Signals, code: int) -> None:
    (folder / "tmp").mkdir()
    environment = {"TMPDIR": str(folder / "tmp"), "OPENBLAS_NUM_THREADS": "1"}
    run = start("bench", "--n", "900", "-m", "pyrpca:tol=0", "-o", "out", **environment)
    deadline = time.monotonic() + 60
    while not _children(run.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    (worker,) = _children(run.pid)
    run.send_signal(number)
    out, err = run.communicate(timeout=30)
    assert run.returncode == code and out == "" and "Traceback" not in err
    # Interrupted while it was starting its worker, it leaves that to end by itself, which sees its input end.
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()
    assert not list((folder / "tmp").iterdir()) and not (folder / "out").exists()


def _children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
