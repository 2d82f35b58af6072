"""A cluster gives the answer of one process; workers may die, blocks may stumble, and a cluster that goes is missed."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca import Decomposition, decompose
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked import cluster as cluster_module
from lrpca.matrices.chunked.cluster import active_client
from lrpca.matrices.chunked.dask_blocks import DaskBlocks
from lrpca.matrices.chunked.large import accept_large
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.chunked.progress import Reading
from lrpca.solvers.base import State
from lrpca.testing import planted
from tests.helpers.same_answer import assert_same

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

RANK = 3
CHUNKS = (70, 45)
PROBLEM = planted((160, 120), rank=RANK, outlier_fraction=0.1, random_state=1)
Y = PROBLEM.Y.astype(np.float32)
# dask speaks of lost workers in logs, which are no concern of the tests.
pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes"),
    pytest.mark.filterwarnings("ignore:Port .* is already in use:UserWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    log = logging.getLogger("distributed")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@contextlib.contextmanager
def two_workers() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            memory_limit="800MB",
            silence_logs=logging.CRITICAL,
        ) as local,
        distributed.Client(local) as ours,
    ):
        yield ours


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with two_workers() as ours:
        yield ours


@pytest.fixture
def mortal(client: Any) -> Iterator[Any]:
    """A cluster to be harmed: dask does not always bring back a worker that was killed, so no other test may need it.

    It comes after the client of the other tests, which is the one in use again when this one has gone.
    """
    with two_workers() as ours, ours.as_current():
        yield ours


@pytest.fixture(scope="module")
def want() -> Decomposition:
    return decompose(Y, RANK)


@pytest.fixture(params=("kept", "not kept"))
def keeping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the workers keep Y from pass to pass, or make it anew each time."""
    if request.param == "not kept":
        monkeypatch.setattr(cluster_module, "_KEPT_PART", 0.0)
    return str(request.param)


def cut(array: Any = Y) -> Any:
    return da.from_array(array, chunks=CHUNKS)


def each_block(function: Callable[[Any], Any]) -> Any:
    return cut().map_blocks(function, dtype=Y.dtype, meta=np.empty((0, 0), Y.dtype))


def tasks(client: Any) -> int:
    """Return how many tasks the scheduler knows, once it had the time to forget."""
    gc.collect()
    for _ in range(40):
        count = int(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
        if not count:
            break
        time.sleep(0.05)
    return count


def test_two_processes_give_the_answer_of_one(client: Any, keeping: str, want: Decomposition) -> None:
    told: list[Reading] = []
    matrix = accept_large(cut(), tell=told.append)
    assert isinstance(matrix, ChunkedMatrix)
    assert isinstance(matrix.source, DaskBlocks)
    d = decompose(matrix, RANK)
    assert_same(d, want)
    assert d.sparse.chunks == cut().chunks
    passes = [reading for reading in told if reading.blocks == 9]
    assert passes[-1].done == 9
    assert told[-1].bytes >= int(d.n_reads) * Y.nbytes
    # Nothing of it stays with the workers.
    assert tasks(client) == 0


def test_what_lies_on_disk_is_read_by_the_workers(client: Any, want: Decomposition, tmp_path: Path) -> None:
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    np.save(tmp_path / "Y.npy", Y)
    np.save(tmp_path / "low.npy", Y[:50])
    np.save(tmp_path / "high.npy", Y[50:])
    with h5py.File(tmp_path / "Y.h5", "w") as file:
        file.create_dataset("Y", data=Y, chunks=CHUNKS)
    stored = zarr.create_array(str(tmp_path / "Y.zarr"), shape=Y.shape, dtype=Y.dtype, chunks=CHUNKS)
    stored[:] = Y
    data: Any
    for data in (stored, tmp_path / "Y.zarr", tmp_path / "Y.h5", tmp_path / "Y.npy"):
        assert isinstance(accept(data).source, DaskBlocks)  # type: ignore[attr-defined]
        assert_same(decompose(data, RANK), want)
    assert_same(decompose([tmp_path / "low.npy", str(tmp_path / "high.npy")], RANK), want)
    with h5py.File(tmp_path / "Y.h5", "r+") as file, pytest.raises(TypeError, match="workers cannot read it; close it"):
        decompose(file["Y"], RANK)


def test_masks_ranks_methods_and_new_rows(client: Any, want: Decomposition) -> None:
    observed = np.random.default_rng(0).random(Y.shape) < 0.9
    spoiled = np.where(observed, Y, np.float32(1e6))
    assert_same(decompose(cut(spoiled), RANK, mask=observed), decompose(spoiled, RANK, mask=observed))
    assert_same(decompose(cut(), "auto"), decompose(Y, "auto"))
    ours, theirs = (decompose(data, RANK, method="ircur").L for data in (cut(), Y))
    assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs)
    np.testing.assert_allclose(want.transform(cut(Y[:90])), want.transform(Y[:90]), rtol=0, atol=1e-5)


def test_other_schedulers_are_used_where_dask_is_told_so(client: Any, want: Decomposition) -> None:
    import dask

    with dask.config.set(scheduler="threads"):
        assert active_client() is None
        assert_same(decompose(cut(), RANK), want)
    for named in (None, client, client.get, "distributed"):
        with dask.config.set(scheduler=named):
            assert active_client() is client


def test_a_worker_that_is_killed_between_passes(mortal: Any, want: Decomposition) -> None:
    def kill(state: State) -> None:
        if state.iteration == 2:
            os.kill(next(iter(mortal.run(os.getpid).values())), signal.SIGKILL)

    assert_same(decompose(cut(), RANK, callback=kill), want)


@pytest.mark.parametrize("accident", ("killed", "out of memory", "stumbled"))
def test_accidents_in_the_middle_of_a_pass(
    accident: str, want: Decomposition, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("client" if accident == "stumbled" else "mortal")
    marker, kill = str(tmp_path / "happened"), int(signal.SIGKILL)

    def once(block: Any) -> Any:
        if not os.path.exists(marker):
            with open(marker, "w"):
                pass
            if accident == "killed":
                os.kill(os.getpid(), kill)
            if accident == "stumbled":
                raise OSError("the network drive stumbled")
            hog = [np.ones(10_000_000) for _ in range(20)]
            time.sleep(60)  # until the nanny has seen it
            del hog
        return block

    assert_same(decompose(each_block(once), RANK), want)
    assert os.path.exists(marker)


def test_a_block_that_fails_names_itself_and_leaves_nothing_behind(client: Any, keeping: str) -> None:
    def fail(block: Any, block_info: Any = None) -> Any:
        if block_info and block_info[0]["chunk-location"] == (2, 1):
            raise RuntimeError("disk on fire")
        return block

    array = each_block(fail)
    with pytest.raises(OSError, match=r"^Y\[140:160, 45:90\] could not be computed from .*disk on fire.*; mend"):
        decompose(array, RANK)
    assert tasks(client) == 0


def test_a_damaged_chunk_names_itself(client: Any, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    zarr.create_array(str(tmp_path / "Y.zarr"), shape=Y.shape, dtype=Y.dtype, chunks=CHUNKS)[:] = Y
    chunk = tmp_path / "Y.zarr/c/1/2"
    chunk.write_bytes(chunk.read_bytes()[:50])
    with pytest.raises(OSError, match=r"^Y\[70:140, 90:120\] could not be read from .*Y\.zarr"):
        decompose(tmp_path / "Y.zarr", RANK)


_SCHEDULER = """
import sys
from distributed import LocalCluster

if __name__ == "__main__":
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(protocol="tcp://", **options) as local:
        print(local.scheduler_address, flush=True)
        sys.stdin.read()
"""


@contextlib.contextmanager
def far_away() -> Iterator[Any]:
    """A cluster in another process, of which we are the client."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SCHEDULER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        with distributed.Client(process.stdout.readline().strip()):
            yield process
            process.kill()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("end", ("SIGKILL", "SIGSTOP"))
def test_a_scheduler_that_dies_or_hangs(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PATIENCE", 1.5)

    with far_away() as process:

        def stop(state: State) -> None:
            if state.iteration == 2:
                process.send_signal(getattr(signal, end))

        with pytest.raises(ConnectionError, match=r"scheduler='tcp://.*' went away, or has no workers left; start a"):
            decompose(cut(), RANK, callback=stop)
    for thread in threading.enumerate():
        assert not thread.name.startswith("lrpca")


def test_a_cluster_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PATIENCE", 3.0)
    local = distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0")
    with local, distributed.Client(local):

        def close(state: State) -> None:
            if state.iteration == 2:
                local.close()

        with pytest.raises(ConnectionError, match="went away, or has no workers left"):
            decompose(cut(), RANK, callback=close)


def test_a_block_that_kills_every_worker() -> None:
    import dask

    kill = int(signal.SIGKILL)

    def fatal(block: Any, block_info: Any = None) -> Any:
        if block_info and block_info[0]["chunk-location"] == (0, 0):
            os.kill(os.getpid(), kill)
        return block

    # One attempt, so as not to wait for workers that only come to die.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=1, dashboard_address=":0", silence_logs=logging.CRITICAL) as local,
        distributed.Client(local),
        pytest.raises(MemoryError, match=r"a block killed every worker .*; give workers more memory, or cut Y"),
    ):
        decompose(each_block(fatal), RANK)


@pytest.mark.parametrize("processes", [False, True])
def test_inside_a_task_of_a_worker(processes: bool) -> None:
    # The task holds the only thread of the only worker, which has to do the blocks, too.
    def reason() -> str:
        distributed.get_client()
        problem = planted((160, 120), rank=RANK, outlier_fraction=0.1, random_state=1)
        return decompose(da.from_array(problem.Y, chunks=CHUNKS), RANK).reason

    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=processes, dashboard_address=":0"
        ) as local,
        distributed.Client(local) as ours,
    ):
        assert ours.submit(reason).result(timeout=60) == "tol"


def test_an_asynchronous_client_is_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(client), "asynchronous", True)
    with pytest.raises(TypeError, match="is asynchronous, and cannot be waited for; call from a thread"):
        decompose(cut(), RANK)
