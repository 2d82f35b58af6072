"""``lrpca decompose`` of data larger than memory: zarr and HDF5 in, zarr out, progress, clusters, checkpoints."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer", reason="needs the extra cli")

import lrpca
from lrpca.cli import decompose as cli_decompose
from lrpca.cli import main
from lrpca.cli.exit_codes import ExitCode
from lrpca.decomposition.file import DIAGNOSIS_ARRAYS
from lrpca.decomposition.zarr import read_sparse
from tests.helpers.cli import Capsys, Patch, error_line, planted

zarr = pytest.importorskip("zarr", reason="needs the extra dask")

RANK = 3


X, Y = planted(400)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Return a working directory that holds the data as Y.zarr, which is read in 4 blocks of 2 chunks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lrpca.matrices.chunked.grid.plan_grid.__defaults__", ((), 1 << 17))
    zarr.create_array("Y.zarr", shape=Y.shape, chunks=(100, 80), dtype=Y.dtype)[:] = Y
    return tmp_path


def decompose(*arguments: str, rank: str = "3") -> int:
    return main(["decompose", *arguments, "--rank", rank])


def relative_error(found: Any) -> float:
    return float(np.linalg.norm(found - X) / np.linalg.norm(X))


# --- what is read and written ------------------------------------------------------------------------------


def test_zarr_to_zarr(folder: Path, capsys: Capsys) -> None:
    assert decompose("Y.zarr", "-o", "out.zarr", "--sparse", "--low-rank") == ExitCode.DONE
    out, err = capsys.readouterr()
    for part in ("Y.zarr (400 x 150, float64)", " in blocks, ", "B/s", "out.zarr/sparse", "out.zarr/low_rank"):
        assert part in out
    assert "\x1b" not in err and err.startswith("iteration   1 ")
    group: Any = zarr.open_group("out.zarr", mode="r")
    small = ["outlier_threshold", "singular_values", *DIAGNOSIS_ARRAYS]
    assert sorted(group) == sorted(["L", "R", "low_rank", "sparse", *small])
    assert relative_error(group["L"][:] @ group["R"][:].T) < 1e-5 and relative_error(group["low_rank"][:]) < 1e-5
    np.testing.assert_allclose(group["singular_values"][:], np.linalg.svd(X, compute_uv=False)[:RANK], rtol=1e-5)
    S = read_sparse("out.zarr/sparse").toarray()
    np.testing.assert_array_equal(S != 0, X != Y)
    np.testing.assert_allclose(S[S != 0], (Y - X)[S != 0], rtol=1e-4)
    facts = dict(group.attrs)
    assert facts["complete"] is True and facts["format"] == "lrpca-result" and facts["rank"] == RANK
    assert facts["n_iter"] == len(facts["history"]) > 0 and facts["outlier_threshold"] == group["outlier_threshold"][()]
    assert group["low_rank"].chunks == (100, 80)


def test_layouts(folder: Path, capsys: Capsys) -> None:
    assert decompose("Y.zarr", "-o", "out.zarr", "--sparse", "--layout", "dense", "-q") == ExitCode.DONE
    S = zarr.open_array("out.zarr/sparse", mode="r")
    np.testing.assert_array_equal(S[:] != 0, X != Y)
    assert S.chunks == (100, 80)
    for wrong in (["--sparse", "--layout", "csr"], ["--layout", "dense"]):
        assert decompose("Y.zarr", "-o", "new.zarr", *wrong) == ExitCode.USAGE
    assert decompose("Y.zarr", "-o", "new.npz", "--sparse", "--layout", "dense") == ExitCode.USAGE
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and all(line.startswith("lrpca: layout=") and ";" in line for line in errors)
    assert not Path("new.zarr").exists()


def test_other_inputs_and_outputs_give_the_same(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    # Several bands of rows, each in several parts.
    monkeypatch.setattr("lrpca.matrices.chunked.matrix._BAND", 1 << 17)
    monkeypatch.setattr("lrpca.decomposition.result._BLOCK", 1 << 12)
    np.save("a.npy", Y[:150])
    np.save("b.npy", Y[150:])
    h5py = pytest.importorskip("h5py")
    with h5py.File("Y.h5", "w") as file:
        file["group/Y"], file["group/X"] = Y, X
    for arguments in (["a.npy", "b.npy"], ["Y.h5", "--key", "group/Y"], ["Y.zarr"]):
        assert (
            decompose(*arguments, "-o", "out.npz", "--force", "--sparse", "--low-rank", "--json", "-q") == ExitCode.DONE
        )
        summary = json.loads(capsys.readouterr().out)
        files = [name for name in arguments if "." in name]
        assert summary["input"] == (files if len(files) > 1 else files[0]) and summary["shape"] == [400, 150]
        assert summary["bytes_read"] > 4 * Y.nbytes and summary["bytes_per_second"] > 0
        content = np.load("out.npz")
        assert relative_error(content["L"] @ content["R"].T) < 1e-5 and relative_error(content["low_rank"]) < 1e-5
        np.testing.assert_array_equal(content["S"] != 0, X != Y)
        d = lrpca.Decomposition.load("out.npz", files if len(files) > 1 else Y)
        np.testing.assert_allclose(np.asarray(d.sparse), content["S"], rtol=1e-9, atol=1e-9)
    assert decompose("Y.zarr", "-o", "out", "--sparse", "-q") == ExitCode.DONE
    np.testing.assert_array_equal(np.load("out/S.npy") != 0, X != Y)
    assert decompose("Y.h5", "-o", "out2") == ExitCode.INPUT
    assert decompose("a.npy", "none.npy", "-o", "out2") == ExitCode.INPUT
    errors = capsys.readouterr().err
    assert "choose one with --key, or key= of read_matrix" in errors and "Y[1]='none.npy' does not exist" in errors


def test_in_memory_to_zarr(folder: Path, capsys: Capsys) -> None:
    np.save("Y.npy", Y.astype(np.float32))
    assert decompose("Y.npy", "-o", "out.zarr", "--sparse") == ExitCode.DONE
    assert " in blocks, " not in capsys.readouterr().out
    S = read_sparse("out.zarr/sparse")
    assert S.dtype == np.float32
    np.testing.assert_array_equal(S.toarray() != 0, X != Y)


def test_only_results_are_replaced(folder: Path, capsys: Capsys) -> None:
    assert decompose("Y.zarr", "-o", "out.zarr", "--sparse", "-q") == ExitCode.DONE
    zarr.create_array("other.zarr", shape=(2, 2), dtype=float)[:] = 7
    Path("file.zarr").write_text("mine")
    before = sorted(folder.rglob("*"))
    for output, more in (("out.zarr", []), *((name, ["--force"]) for name in ("other.zarr", "file.zarr", "Y.zarr"))):
        assert decompose("Y.zarr", "-o", output, *more) == ExitCode.OUTPUT
        error_line(capsys, f"path={output!r} ", ";")
    for output in ("Y.zarr/result", "Y.zarr/out.npz", "none/out.zarr"):
        assert decompose("Y.zarr", "-o", output, "--force") == ExitCode.OUTPUT
    assert sorted(folder.rglob("*")) == before
    # The input may be in an earlier result, but that cannot be replaced then.
    assert decompose("out.zarr", "--key", "L", "-o", "out.zarr", "--force", rank="1") == ExitCode.OUTPUT
    assert decompose("Y.zarr", "-o", "out.zarr", "--force", "-q") == ExitCode.DONE
    assert "sparse" not in zarr.open_group("out.zarr", mode="r")


# --- what is shown -------------------------------------------------------------------------------------------


def test_progress_in_chunks_and_bytes(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    assert decompose("Y.zarr", "-o", "out.zarr", "--sparse") == ExitCode.DONE
    assert "blocks" not in capsys.readouterr().err  # no minute has passed
    monkeypatch.setattr("lrpca.cli.console.INTERVAL", 0.0)
    assert decompose("Y.zarr", "-o", "out.zarr", "--sparse", "--force") == ExitCode.DONE
    err = capsys.readouterr().err
    lines = err.splitlines()
    for doing in ("pass 2: ", "writing S: "):
        told = [line.split(",")[0] for line in lines if line.startswith(doing)]
        assert told == [f"{doing}{done} of 4 blocks" for done in (1, 2, 3, 4)]
    passes = [int(line.split()[1][:-1]) for line in lines if line.startswith("pass ")]
    assert sorted(set(passes)) == list(range(1, max(passes) + 1)) and "reading single entries: " in err
    assert all(line.endswith("B/s") for line in lines if "blocks" in line) and "\x1b" not in err
    assert decompose("Y.zarr", "-o", "out.zarr", "--sparse", "--force", "-q") == ExitCode.DONE
    assert capsys.readouterr() == ("", "")


# --- what goes wrong -------------------------------------------------------------------------------------------


def content(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_disk_that_fills_while_s_is_written(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    from zarr.storage import LocalStore

    monkeypatch.setattr("lrpca.decomposition.zarr_stores._ENTRIES", 1000)
    put = LocalStore.set

    async def refuse(self: LocalStore, key: str, value: Any) -> None:
        if key == "value/c/2":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), key)
        await put(self, key, value)

    monkeypatch.setattr(LocalStore, "set", refuse)
    assert decompose("Y.zarr", "-o", "out.zarr", "--sparse", "-q") == ExitCode.OUTPUT
    message = "lrpca: path='out.zarr' cannot be written (No space left on device); choose another place or free space"
    assert capsys.readouterr().err == f"{message}; path='out.zarr' holds the result without 'sparse'\n"
    # The factors took long.
    group: Any = zarr.open_group("out.zarr", mode="r")
    assert group.attrs["complete"] is False and relative_error(group["L"][:] @ group["R"][:].T) < 1e-5
    assert "sparse" not in group and {path.name for path in folder.iterdir()} == {"Y.zarr", "out.zarr"}
    monkeypatch.setattr(LocalStore, "set", put)
    assert decompose("Y.zarr", "-o", "out.zarr", "--sparse", "-q", "--force") == ExitCode.DONE
    np.testing.assert_array_equal(read_sparse("out.zarr/sparse").toarray() != 0, X != Y)
    # An old result stays, whole.
    before = content(folder)
    monkeypatch.setattr(LocalStore, "set", refuse)
    assert decompose("Y.zarr", "-o", "out.zarr", "--sparse", "-q", "--force") == ExitCode.OUTPUT
    assert capsys.readouterr().err == f"{message}\n"
    assert content(folder) == before and {path.name for path in folder.iterdir()} == {"Y.zarr", "out.zarr"}


def test_interrupted_while_s_is_written(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    def interrupt(doing: str, reading: Any) -> str:
        if doing == "writing S" and reading.done == 3:
            raise KeyboardInterrupt
        return doing

    monkeypatch.setattr(cli_decompose, "_progress", interrupt)
    assert decompose("Y.zarr", "-o", "out.zarr", "--sparse") == ExitCode.INTERRUPTED
    assert "lrpca: interrupted, path='out.zarr' holds the result without 'sparse'\n" in capsys.readouterr().err
    group: Any = zarr.open_group("out.zarr", mode="r")
    assert sorted(group) == sorted(["L", "R", "outlier_threshold", "singular_values", *DIAGNOSIS_ARRAYS])
    assert {path.name for path in folder.iterdir()} == {"Y.zarr", "out.zarr"}


def test_interrupted_with_a_checkpoint(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    cells = cli_decompose._cells

    def interrupt(state: Any) -> Any:
        if state.iteration == 4:
            raise KeyboardInterrupt
        return cells(state)

    monkeypatch.setattr(cli_decompose, "_cells", interrupt)
    assert decompose("Y.zarr", "-o", "out.zarr", "--checkpoint", "run.npz") == ExitCode.INTERRUPTED
    err = capsys.readouterr().err
    assert "lrpca: interrupted, checkpoint='run.npz' holds the run so far; run the same command again to resume" in err
    monkeypatch.setattr(cli_decompose, "_cells", cells)
    assert decompose("Y.zarr", "-o", "out.zarr", "--checkpoint", "run.npz") == ExitCode.DONE
    # Iterations that were done before are not done again.
    err = capsys.readouterr().err
    assert "iteration   1 " not in err and "iteration   5 " in err
    group: Any = zarr.open_group("out.zarr", mode="r")
    assert relative_error(group["L"][:] @ group["R"][:].T) < 1e-5
    assert decompose("Y.zarr", "-o", "x.zarr", "--checkpoint", "run.npz", "-m", "godec") == ExitCode.USAGE
    assert decompose("Y.zarr", "-o", "x.zarr", "--checkpoint", "none/run.npz") == ExitCode.OUTPUT


def test_a_checkpoint_that_cannot_be_written(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run.npz")

    monkeypatch.setattr("lrpca.solvers.checkpoint._PAUSE", 0.0)
    monkeypatch.setattr(np, "savez", refuse)
    assert decompose("Y.zarr", "-o", "out.zarr", "--checkpoint", "run.npz", "-q") == ExitCode.OUTPUT
    assert capsys.readouterr().err.startswith(
        "lrpca: checkpoint='run.npz' cannot be written (No space left on device); "
    )
    assert [path.name for path in folder.iterdir()] == ["Y.zarr"]


def test_a_chunk_that_cannot_be_read(folder: Path, capsys: Capsys) -> None:
    Path("Y.zarr/c/2/1").write_bytes(b"damaged")
    assert decompose("Y.zarr", "-o", "out.zarr") == ExitCode.INPUT
    err = capsys.readouterr().err
    assert "lrpca: Y[200:300, " in err and "could not be read from Y.zarr" in err and "Traceback" not in err
    assert not Path("out.zarr").exists()


# --- clusters ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a cluster of one worker process, whose working directory is not that of the tests."""
    from distributed import LocalCluster

    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    try:
        cluster = LocalCluster(
            n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0", worker_dashboard_address=None
        )
    finally:
        os.chdir(before)
    with cluster:
        yield cluster


@pytest.mark.filterwarnings("default")
def test_on_a_cluster(folder: Path, cluster: Any, capsys: Capsys) -> None:
    from lrpca.matrices.chunked.cluster import active_client

    arguments = ["Y.zarr", "-o", "out.zarr", "--sparse", "--layout", "dense", "--scheduler", cluster.scheduler_address]
    assert decompose(*arguments) == ExitCode.DONE
    assert " in blocks, " in capsys.readouterr().out and active_client() is None
    group: Any = zarr.open_group("out.zarr", mode="r")
    assert relative_error(group["L"][:] @ group["R"][:].T) < 1e-5
    np.testing.assert_array_equal(group["sparse"][:] != 0, X != Y)
    assert group["sparse"].attrs["entries"] == np.count_nonzero(X != Y)


def test_schedulers_that_do_not_answer(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cli_decompose, "_PATIENCE", 0.5)
    for address in ("tcp://127.0.0.1:9", "nonsense://x"):
        assert decompose("Y.zarr", "-o", "out.zarr", "--scheduler", address) == ExitCode.INPUT
        error_line(capsys, f"scheduler={address!r} does not answer (")
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert decompose("Y.zarr", "-o", "out.zarr", "--scheduler", "tcp://127.0.0.1:9") == ExitCode.USAGE
    assert "pip install lrpca[dask]" in capsys.readouterr().err and not Path("out.zarr").exists()


def test_what_a_link_points_to_is_replaced(folder: Path) -> None:
    assert main(["decompose", "Y.zarr", "--rank", "3", "-o", "real.zarr", "-q"]) == ExitCode.DONE
    Path("link.zarr").symlink_to("real.zarr")
    before = Path("real.zarr/zarr.json").stat().st_ino
    assert main(["decompose", "Y.zarr", "--rank", "3", "-o", "link.zarr", "-q", "-f"]) == ExitCode.DONE
    assert Path("link.zarr").is_symlink() and Path("real.zarr/zarr.json").stat().st_ino != before
    assert zarr.open_group("real.zarr", mode="r")["L"].shape == (400, RANK)


def test_what_others_put_into_a_result_is_not_removed(folder: Path, capsys: Capsys) -> None:
    assert main(["decompose", "Y.zarr", "--rank", "3", "-o", "out.zarr", "-q"]) == ExitCode.DONE
    Path("out.zarr/notes.txt").write_text("mine")
    assert main(["decompose", "Y.zarr", "--rank", "3", "-o", "out.zarr", "-q", "-f"]) == ExitCode.OUTPUT
    assert "holds 'notes.txt', which was not written by this; move it" in capsys.readouterr().err
    assert Path("out.zarr/notes.txt").read_text() == "mine"
