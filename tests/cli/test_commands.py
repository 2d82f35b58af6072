"""The command line as a user meets it: what is written, what is printed, and every exit code."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import scipy.io

import lrpca
from lrpca.cli import ExitCode, main
from tests.helpers.cli import Capsys, Patch, error_line, planted, start
from tests.helpers.full_disk import full_disk
from tests.helpers.terminal import run_in_terminal

typer = pytest.importorskip("typer", reason="needs the extra cli")
pd = pytest.importorskip("pandas")

RANK = 3


X, Y = planted(200)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Return a working directory that holds the data as Y.npy."""
    monkeypatch.chdir(tmp_path)
    np.save("Y.npy", Y)
    return tmp_path


def decompose(*arguments: str, file: str = "Y.npy", rank: str = "3") -> int:
    return main(["decompose", file, "--rank", rank, *arguments])


def relative_error(found: np.ndarray) -> float:
    return float(np.linalg.norm(found - X) / np.linalg.norm(X))


# --- what is written ---------------------------------------------------------------------------------------


def test_a_folder_of_npy_files(folder: Path) -> None:
    assert decompose("-o", "out", "--sparse", "--low-rank") == ExitCode.DONE
    names = sorted(file.name for file in (folder / "out").iterdir())
    assert names == ["L.npy", "R.npy", "S.npy", "diagnosis.npz", "low_rank.npy", "result.json"]
    L, R, S, low_rank = (np.load(folder / "out" / f"{name}.npy") for name in ("L", "R", "S", "low_rank"))
    assert relative_error(L @ R.T) < 1e-5 and relative_error(low_rank) < 1e-5
    np.testing.assert_array_equal(S != 0, X != Y)
    np.testing.assert_allclose(S[S != 0], (Y - X)[S != 0], rtol=1e-4)
    result = json.loads((folder / "out" / "result.json").read_text())
    assert result["method"] == "lrpca" and result["rank"] == RANK and result["converged"] is True
    assert result["n_iter"] == len(result["history"]) > 0 and result["n_reads"] >= result["n_iter"]
    assert result["history"][0]["iteration"] == 1 and 0 < result["history"][-1]["kept"] < 1
    assert result["outlier_fraction"] == pytest.approx(np.mean(X != Y), abs=1e-6)


@pytest.mark.parametrize("ending", ["npz", "mat", "NPZ"])
@pytest.mark.parametrize("full", [True, False])
def test_one_file(folder: Path, ending: str, full: bool) -> None:
    assert decompose("-o", f"out.{ending}", *(["--sparse", "--low-rank"] if full else [])) == ExitCode.DONE
    assert sorted(file.name for file in folder.iterdir()) == ["Y.npy", f"out.{ending}"]
    content = scipy.io.loadmat("out.mat") if ending == "mat" else dict(np.load(f"out.{ending}", allow_pickle=False))
    assert relative_error(content["L"] @ content["R"].T) < 1e-5
    singular_values = np.linalg.svd(X, compute_uv=False)[:RANK]
    np.testing.assert_allclose(np.ravel(content["singular_values"]), singular_values, rtol=1e-5)
    assert json.loads(str(np.ravel(content["result"])[0]))["reason"] in ("tol", "noise_floor")
    assert ("S" in content) == ("low_rank" in content) == full
    if full:
        np.testing.assert_array_equal(content["S"] != 0, X != Y)
        assert relative_error(content["low_rank"]) < 1e-5


def test_other_inputs_give_the_same_factors(folder: Path) -> None:
    np.savetxt("Y.csv", Y, delimiter=",", fmt="%.17g")
    scipy.io.savemat("Y.mat", {"other": X, "Y": Y})
    for file, more in (("Y.npy", ()), ("Y.csv", ()), ("Y.mat", ("--key", "Y"))):
        assert decompose("-o", f"{file}.npz", *more, file=file) == ExitCode.DONE
        np.testing.assert_allclose(np.load(f"{file}.npz")["L"], np.load("Y.npy.npz")["L"], rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("always")
def test_names_in_a_table_are_told_and_can_be_given(folder: Path, capsys: Capsys) -> None:
    n_rows, n_columns = Y.shape
    table = pd.DataFrame(Y, columns=range(1900, 1900 + n_columns))
    table.to_csv("years.csv")
    table.to_csv("bare.csv", index=False)
    named = "column names in the first line"
    for file, more, shape, names in (
        ("years.csv", (), (n_rows, n_columns), f"{named}, row names in the first column"),
        ("bare.csv", (), (n_rows, n_columns), named),
        ("bare.csv", ("--header",), (n_rows, n_columns), named),
        ("bare.csv", ("--no-header",), (n_rows + 1, n_columns), "no names"),
    ):
        decompose("-o", "out.npz", "--force", *more, file=file)
        out, err = capsys.readouterr()
        assert f"{file} ({shape[0]} x {shape[1]}, float64; {names})" in out
        assert ("taken as column names; if it is data" in err) == (file == "bare.csv" and not more)
        decompose("-o", "out.npz", "--force", "--json", "-q", *more, file=file)
        summary = json.loads(capsys.readouterr().out)
        assert summary["names"] == names and summary["shape"] == [*shape]
    for file in (["Y.npy"], ["Y.npy", "Y.npy"]):
        assert main(["decompose", *file, "-o", "no.npz", "--header"]) == ExitCode.INPUT
        assert "header=True has no meaning for " in capsys.readouterr().err


def test_force_replaces_and_leaves_nothing_of_the_old_result(folder: Path) -> None:
    assert decompose("-o", "out", "--sparse") == ExitCode.DONE
    (folder / "out" / "notes.txt").write_text("mine")
    np.save("Y.npy", 2 * Y)
    assert decompose("-o", "out") == ExitCode.OUTPUT
    assert decompose("-o", "out", "--force") == ExitCode.DONE
    names = sorted(file.name for file in (folder / "out").iterdir())
    assert names == ["L.npy", "R.npy", "diagnosis.npz", "notes.txt", "result.json"]
    assert relative_error(np.load("out/L.npy") @ np.load("out/R.npy").T / 2) < 1e-5


def test_schedules_by_name_json_and_mat(folder: Path, capsys: Capsys) -> None:
    thresholds, steps = np.geomspace(8, 1e-3, 17), np.full(17, 0.7)
    scipy.io.savemat("model.mat", {"ths": thresholds[None], "step": steps[None]})
    lrpca.Schedule(thresholds, steps, shape=(1000, 1000), rank=5).save("model.json")
    iterations = []
    for name in ("model.mat", "model.json"):
        decompose("-o", f"{name}.npz", "--schedule", name, "--max-iter", "5", "--json", "-q")
        iterations.append(json.loads(capsys.readouterr().out)["history"])
    for record in iterations[0] + iterations[1]:
        del record["seconds"]
    assert iterations[0] == iterations[1] and len(iterations[0]) == 5
    assert decompose("-o", "x.npz", "--schedule", "no-such-name") == ExitCode.INPUT
    (folder / "broken.json").write_text("{")
    assert decompose("-o", "x.npz", "--schedule", "broken.json") == ExitCode.INPUT
    assert decompose("-o", "x.npz", "--schedule", "none.mat") == ExitCode.INPUT
    errors = capsys.readouterr().err
    assert "no-such-name" in errors and "broken.json" in errors and "none.mat" in errors


# --- what is printed ---------------------------------------------------------------------------------------


def test_summary_and_progress(folder: Path, capsys: Capsys) -> None:
    (folder / "Y.npy").rename("[red]Y.npy")
    assert decompose("-o", "out", file="[red]Y.npy") == ExitCode.DONE
    out, err = capsys.readouterr()
    for part in ("[red]Y.npy (200 x 150, float64)", "lrpca, rank 3", "yes (", "% of the entries", "out/result.json"):
        assert part in out
    assert err.splitlines()[0].startswith("iteration   1  threshold ") and "kept" in err and "Traceback" not in err


def test_json_and_quiet(folder: Path, capsys: Capsys) -> None:
    assert decompose("-o", "out.npz", "--json", "--quiet") == ExitCode.DONE
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert err == "" and summary["shape"] == [200, 150] and summary["output"] == ["out.npz"]
    assert summary["input"] == "Y.npy" and summary["converged"] is True
    assert decompose("-o", "out.npz", "--quiet", "--force") == ExitCode.DONE
    assert capsys.readouterr() == ("", "")


def test_live_progress_on_a_terminal(folder: Path) -> None:
    code, shown, out = run_in_terminal("decompose", "Y.npy", "--rank", "3", "-o", "out.npz")
    assert code == ExitCode.DONE
    assert b"threshold" in shown and b"solving" in shown and b"\x1b[" in shown
    assert "converged" in out.decode() and "\x1b[" not in out.decode()


def test_help_and_version(capsys: Capsys) -> None:
    assert main(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"lrpca {lrpca.__version__}\n"
    for arguments in (["--help"], ["decompose", "--help"], ["demo", "--help"]):
        assert main(arguments) == ExitCode.DONE
        text = capsys.readouterr().out
        for code in ExitCode:
            assert f"{code.value}" in text
        assert "not converged" in text
    assert main([]) == ExitCode.USAGE


USAGE = {
    "": "lrpca [OPTIONS] COMMAND [ARGS]...",
    "decompose": "lrpca decompose [OPTIONS] FILE...",
    "demo": "lrpca demo [OPTIONS]",
    "video": "lrpca video [OPTIONS] IN",
    "train": "lrpca train [OPTIONS] [FILES...]",
    "models": "lrpca models [OPTIONS] [NAME]",
    "bench": "lrpca bench [OPTIONS] [FILE]",
    "reproduce": "lrpca reproduce [OPTIONS] [NAME]",
}


@pytest.mark.parametrize("command", USAGE)
def test_help_shows_arguments_as_we_write_them(command: str, capsys: Capsys) -> None:
    assert main([*command.split(), "--help"]) == ExitCode.DONE
    text = capsys.readouterr().out
    (usage,) = (line for line in text.splitlines() if "Usage:" in line)
    assert usage.split("Usage:")[1].strip() == USAGE[command]
    # Types of Python, which typer writes where it is not told what to write.
    assert not re.search(r"<\w+(\[\w+\])?>", text) and "--help" in text


def test_help_has_every_command(capsys: Capsys) -> None:
    main(["--help"])
    listed = capsys.readouterr().out.split("Commands")[1].split("Exit codes")[0]
    assert set(re.findall(r"^\W+([a-z]+)  ", listed, re.MULTILINE)) == set(USAGE) - {""}


# --- the demo ------------------------------------------------------------------------------------------------


def test_demo(folder: Path, capsys: Capsys) -> None:
    page = folder / "shown" / "index.html"
    page.parent.mkdir()
    page.write_text("mine")
    assert main(["demo", "-o", "shown", "--frames", "30"]) == ExitCode.OUTPUT
    assert "--force" in capsys.readouterr().err and page.read_text() == "mine"
    assert main(["demo", "-o", "shown", "--frames", "30", "--force"]) == ExitCode.DONE
    out, err = capsys.readouterr()
    for part in ("30 frames", "background error", "F-measure 0.", "passes over the data", "shown/index.html"):
        assert part in out
    assert "rendering" in err and page.stat().st_size > 10_000


def test_demo_that_cannot_begin(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    for output in ("Y.npy", "Y.npy/demo"):
        assert main(["demo", "-o", output, "--frames", "20"]) == ExitCode.OUTPUT
        error_line(capsys, output)
    assert main(["demo", "-o", "shown", "--frames", "5"]) == ExitCode.USAGE
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "-o", "shown"]) == ExitCode.USAGE
    assert "pip install lrpca[" in capsys.readouterr().err


# --- exit codes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["decompose"],
        ["decompose", "Y.npy", "--rank", "3"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "five"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "0"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--method", "nonesuch"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--method", "accaltproj:beta"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--method", "accaltproj:gamma=2"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "0.5", "--method", "pcp"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--method", "pcp:algorithm=admm,growth=2"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--method", "sampled:side=8"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--method", "altproj", "--schedule", "default"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--tol", "2"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--tol", "nan"],
        ["decompose", "none.npy", "-o", "out", "--rank", "3", "--tol", "2"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--tol", "-1"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--max-iter", "0"],
        ["decompose", "Y.npy", "-o", "out", "--rank", "3", "--frobnicate"],
        ["frobnicate"],
    ],
)
def test_wrong_usage(folder: Path, arguments: list[str], capsys: Capsys) -> None:
    assert main(arguments) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == "" and ("Error" in err or err.startswith("lrpca: ")) and "Traceback" not in err
    assert not (folder / "out").exists()


def test_methods_and_their_options(folder: Path) -> None:
    assert decompose("-o", "out", "--method", "accaltproj:gamma=0.5") == ExitCode.DONE
    result = json.loads((folder / "out" / "result.json").read_text())
    assert result["method"] == "accaltproj" and result["settings"]["gamma"] == 0.5
    assert relative_error(np.load(folder / "out" / "L.npy") @ np.load(folder / "out" / "R.npy").T) < 1e-5
    assert main(["decompose", "Y.npy", "-o", "convex", "-m", "pcp"]) == ExitCode.DONE
    assert np.load(folder / "convex" / "L.npy").shape[1] == RANK


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_the_extra(monkeypatch: Patch, capsys: Capsys, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["--version"]) == ExitCode.USAGE
    error_line(capsys, "pip install lrpca[cli]")


def test_without_a_reader(folder: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    (folder / "Y.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert decompose("-o", "out", file="Y.parquet") == ExitCode.USAGE
    assert "pip install lrpca[cli]" in capsys.readouterr().err


def refused_matrices() -> dict[str, np.ndarray]:
    spoiled = Y.copy()
    spoiled[3, 4] = np.inf
    return {"inf": spoiled, "vector": Y[0], "cube": Y[None], "nan": np.full_like(Y, np.nan), "empty": Y[:0]}


@pytest.mark.parametrize("kind", refused_matrices())
def test_matrices_that_are_refused(folder: Path, kind: str, capsys: Capsys) -> None:
    np.save("Y.npy", refused_matrices()[kind])
    assert decompose("-o", "out") == ExitCode.INPUT
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("lrpca: ") and err.count("\n") <= 2 and "Traceback" not in err
    assert not (folder / "out").exists()


def test_inputs_that_cannot_be_read(folder: Path, capsys: Capsys) -> None:
    (folder / "short.npy").write_bytes((folder / "Y.npy").read_bytes()[:5000])
    (folder / "Y.doc").write_text("1,2\n")
    for file in ("none.npy", "short.npy", "Y.doc", "."):
        assert decompose("-o", "out", file=file) == ExitCode.INPUT
        error_line(capsys, f"path={file!r}", ";")
    assert decompose("-o", "out", rank="151") == ExitCode.INPUT
    assert "lrpca: rank=151" in capsys.readouterr().err
    assert not (folder / "out").exists()


@pytest.mark.filterwarnings("default")
def test_not_converged_is_written_and_said(folder: Path, capsys: Capsys) -> None:
    assert decompose("-o", "out", "--max-iter", "1", "--json") == ExitCode.NOT_CONVERGED
    out, err = capsys.readouterr()
    assert json.loads(out)["reason"] == "max_iter" and (folder / "out" / "L.npy").exists()
    assert "lrpca: not converged (max_iter); the result is written" in err
    warning = [line for line in err.splitlines() if line.startswith("lrpca: warning: ")]
    assert len(warning) == 1 and "site-packages" not in err and "warnings.warn" not in err


def test_outputs_that_cannot_be_written(folder: Path, capsys: Capsys) -> None:
    (folder / "file").write_text("x")
    (folder / "folder.npz").mkdir()
    (folder / "old.npz").write_text("old")
    os.mkfifo("pipe.npz")
    os.mkfifo("pipe")
    outputs = ["file/out", "file", "folder.npz", "old.npz", "none/out.npz", "out.csv", "out.npy", "pipe.npz", "pipe"]
    outputs += ["/proc/out", "/proc/out.npz"] if Path("/proc/self").exists() else []
    before = sorted(folder.rglob("*"))
    for output in outputs:
        assert decompose("-o", output) == ExitCode.OUTPUT, output  # one line: before anything was solved
        error_line(capsys, f"path={output!r} ", ";")
    assert sorted(folder.rglob("*")) == before and (folder / "old.npz").read_text() == "old"


def test_the_input_is_never_replaced(folder: Path) -> None:
    np.savez("Y.npz", Y=Y)
    np.save("S.npy", Y)
    assert decompose("-o", "Y.npz", "--force", file="Y.npz") == ExitCode.OUTPUT
    assert decompose("-o", ".", "--force", file="S.npy") == ExitCode.OUTPUT
    np.testing.assert_array_equal(np.load("S.npy"), Y)


@pytest.mark.parametrize("output", ["out", "out.npz", "out.mat", "old"])
def test_a_disk_that_fills_up_leaves_nothing_behind(folder: Path, output: str, capsys: Capsys) -> None:
    assert decompose("-o", "old") == ExitCode.DONE  # also sees to it that nothing is compiled under the limit
    (folder / "old" / "L.npy").write_text("old")
    before = sorted(folder.rglob("*"))
    capsys.readouterr()
    with full_disk(20_000):
        assert decompose("-o", output, "--sparse", "--force", "--quiet") == ExitCode.OUTPUT
    error_line(capsys, f"path={output!r} cannot be written (")
    assert sorted(folder.rglob("*")) == before and (folder / "old" / "L.npy").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    ("streams", "code"), [(">&-", 0), ("2>&-", 0), ("2>/dev/full", 0), (">/dev/full", ExitCode.OUTPUT)]
)
def test_streams_that_are_closed_or_full_cost_no_result(folder: Path, streams: str, code: int) -> None:
    command = f"{shlex.quote(sys.executable)} -m lrpca decompose Y.npy --rank 3 -o out.npz {streams}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert relative_error(lrpca.Decomposition.load("out.npz").low_rank) < 1e-5
    if code:
        last = done.stderr.splitlines()[-1]
        assert last == "lrpca: the standard output cannot be written (No space left on device); free some space"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
def test_interrupted_in_the_middle(folder: Path, number: signal.Signals, code: ExitCode) -> None:
    process = start("decompose", "Y.npy", "--rank", "3", "-o", "out", "--tol", "0", "--max-iter", "1000000")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("iteration   1 ")
    process.send_signal(number)
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == code and time.monotonic() - began < 30
    assert out == "" and "Traceback" not in err
    assert [file.name for file in folder.iterdir()] == ["Y.npy"]


@pytest.mark.parametrize("module", ["typer", "numpy", "numba"])
def test_interrupted_while_a_library_is_loaded(
    folder: Path, module: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Patch
) -> None:
    first = tmp_path_factory.mktemp("first")
    code = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(30)"
    (first / f"{module}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(first), *filter(None, sys.path)]))
    process = start("decompose", "Y.npy", "--rank", "3", "-o", "out")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (ExitCode.INTERRUPTED, "")
    assert err.endswith("lrpca: interrupted, nothing half-written is left\n")
    assert "Traceback" not in err and [file.name for file in folder.iterdir()] == ["Y.npy"]


def test_interrupted_while_the_arguments_are_read(monkeypatch: Patch, capsys: Capsys) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(typer.core.TyperGroup, "make_context", interrupt)
    assert main(["models"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "lrpca: interrupted, nothing half-written is left\n"


@pytest.mark.parametrize("arguments", ["models", "models --json", "--help", "decompose Y.npy --rank 3 -o out.npz"])
def test_output_that_nobody_reads(folder: Path, arguments: str) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "lrpca", *arguments.split()]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    assert done.returncode == ExitCode.UNREAD
    assert [line for line in done.stderr.splitlines() if not line.startswith("iteration")] == []
    if "out.npz" in arguments:  # what is printed comes last
        assert relative_error(lrpca.Decomposition.load("out.npz").low_rank) < 1e-5


def test_progress_that_nobody_reads_ends_the_work(folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "lrpca", "decompose", "Y.npy", "--rank", "3", "-o", "out"]
    done = subprocess.run(command, stdout=write, stderr=write, timeout=120)
    os.close(write)
    assert done.returncode == ExitCode.UNREAD and [file.name for file in folder.iterdir()] == ["Y.npy"]


@pytest.mark.parametrize("output", ["out", "out.npz", "out.mat"])
def test_interrupted_while_writing(folder: Path, output: str, monkeypatch: Patch) -> None:
    def interrupt(stream: Path | IO[bytes], *_: object, **__: object) -> None:
        file = stream if isinstance(stream, Path) else Path(stream.name)
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    for module, name in ((np, "save"), (np, "savez"), (scipy.io, "savemat")):
        monkeypatch.setattr(module, name, interrupt)
    assert decompose("-o", output) == ExitCode.INTERRUPTED
    assert [file.name for file in folder.iterdir()] == ["Y.npy"]
