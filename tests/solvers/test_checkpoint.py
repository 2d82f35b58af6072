"""A run that was killed goes on from its last iteration, and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca import Decomposition, Schedule, decompose
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers import checkpoint as module
from lrpca.solvers.base import State
from lrpca.solvers.loop import Loop
from lrpca.testing import planted

RANK = 3
SHAPE = (120, 100)
EXACT = planted(SHAPE, rank=RANK, outlier_fraction=0.1, random_state=0)
NOISY = planted((130, 110), rank=RANK, outlier_fraction=0.1, noise=0.05, random_state=1)
SATURATED = planted((150, 120), rank=4, outlier_fraction=0.35, random_state=2)


# Thresholds that would outrun the error, were it not for the floor.
SIZE = float(np.abs(EXACT.X).mean())
FLOORED = Schedule([6 * SIZE, 0.3 * SIZE, 0.1 * SIZE], [0.0, 1.0, 0.8], tail=(1.0, 0.4), floor=2.0)


class EnoughError(Exception):
    """Raised to end a run."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.npz"


def one_sided() -> Any:
    """Outliers on one side, which take a second start."""
    Y = NOISY.Y + 3 * np.abs(NOISY.X).mean() * (np.random.default_rng(0).random(NOISY.Y.shape) < 0.3)
    return Y


def spoiled_columns() -> Any:
    """Columns with many outliers: with components to spare one becomes a component, which is put on trial."""
    options: dict[str, Any] = {"outlier_fraction": 0.05, "outlier_size": 10, "placement": "columns"}
    return planted(SHAPE, rank=RANK, **options, random_state=1).Y


def with_gaps() -> Any:
    return np.where(np.random.default_rng(0).random(SHAPE) < 0.3, np.nan, EXACT.Y)


def solve(Y: Any, rank: Any, path: Path | None = None, callback: Any = None, **arguments: Any) -> Decomposition:
    options = {**arguments.pop("options", {}), "checkpoint": path}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return decompose(Y, rank, options=options, callback=callback, **arguments)


def interrupt(at: int, Y: Any, rank: Any, path: Path, **arguments: Any) -> None:
    def callback(state: State) -> None:
        if state.iteration == at:
            raise EnoughError

    with pytest.raises(EnoughError):
        solve(Y, rank, path, callback, **arguments)


def history(d: Decomposition) -> list[dict[str, Any]]:
    return [asdict(record) | {"seconds": 0} for record in d.history]


def assert_same(got: Decomposition, expected: Decomposition) -> None:
    np.testing.assert_array_equal(got.L, expected.L)
    np.testing.assert_array_equal(got.R, expected.R)
    assert history(got) == history(expected)
    assert (got.reason, got.n_reads) == (expected.reason, expected.n_reads)


PROBLEMS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "exact": (EXACT.Y, RANK, {}),
    "noise": (NOISY.Y, RANK, {}),
    "single precision": (NOISY.Y.astype(np.float32), RANK + 1, {}),
    "rows refitted": (SATURATED.Y, 8, {}),
    "second start": (one_sided(), RANK, {}),
    "trial": (spoiled_columns(), 6, {}),
    "gaps": (with_gaps(), RANK + 1, {}),
    "weights": (EXACT.Y, RANK, {"row_weight": np.r_[np.zeros(10), np.ones(110)]}),
    "change of X and S": (NOISY.Y, RANK, {"tol": 0, "options": {"change": 1e-3}}),
    "complex": (EXACT.Y + 1j * NOISY.Y[:120, :100], 2 * RANK, {}),
    "own start": (EXACT.Y, RANK, {"start": (np.eye(120, RANK) + 0.1, np.eye(100, RANK) + 0.1)}),
    "absolute": (EXACT.Y, RANK, {"schedule": Schedule.load("frmnn-0.1")}),
    "absolute with a floor": (EXACT.Y, RANK, {"schedule": FLOORED}),
    "absolute, change of X and S": (
        EXACT.Y,
        RANK,
        {"schedule": Schedule.load("video"), "options": {"change": 1e-2}, "tol": 0},
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_an_interrupted_run_ends_as_if_nothing_had_happened(name: str, path: Path) -> None:
    Y, rank, arguments = PROBLEMS[name]
    expected = solve(Y, rank, **arguments)
    # Everywhere in short runs, early and late in long ones.
    for at in sorted({3, expected.n_iter - 2} | ({1, expected.n_iter} if expected.n_iter < 30 else set())):
        interrupt(at, Y, rank, path, **arguments)
        seen: list[int] = []
        got = solve(Y, rank, path, lambda state: seen.append(state.iteration), **arguments)  # noqa: B023
        assert_same(got, expected)
        # Iterations are shown once.
        assert seen == list(range(at + 1, expected.n_iter + 1))
        assert not path.exists()


@pytest.mark.parametrize("name", ("rows refitted", "second start"))
def test_an_interrupt_between_callbacks(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any pass: of the start, of an iteration, of a check, which may have changed factors in place."""
    Y, rank, arguments = PROBLEMS[name]
    run_pass = DenseMatrix.run_pass
    left = [0]

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return run_pass(self, *args, **options)

    monkeypatch.setattr(DenseMatrix, "run_pass", counted)
    expected = solve(Y, rank, **arguments)
    taken = -left[0]
    for at in (taken // 4, taken // 2, taken - 4):
        # Twice, the second time soon after it went on.
        for passes in (at, 3):
            left[0] = passes
            with pytest.raises(KeyboardInterrupt):
                solve(Y, rank, path, **arguments)
        left[0] = 0
        assert_same(solve(Y, rank, path, **arguments), expected)


def test_large_data_that_are_computed_roughly(path: Path) -> None:
    problem = planted((1100, 960), rank=2, outlier_fraction=0.1, random_state=3)
    rough: list[bool] = []
    compute = DenseMatrix.compute_roughly
    expected = solve(problem.Y, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            DenseMatrix, "compute_roughly", lambda self, wanted: (rough.append(wanted), compute(self, wanted))[1]
        )
        interrupt(2, problem.Y, 2, path)
    assert True in rough and json.loads(str(np.load(path)["facts"]))["state"]["precision"]["now"] == "float32"
    taken_up: list[Any] = []
    restore = Loop.restore
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Loop, "restore", lambda self, state: (restore(self, state), taken_up.append(self.matrix.arithmetic))
        )
        assert_same(solve(problem.Y, 2, path), expected)
    # Checks may come before the next pass.
    assert taken_up == [np.float32]


def test_a_killed_process(path: Path) -> None:
    """SIGKILL, which nobody can catch, while iterations take a third of a second."""
    script = f"""
        import time, numpy as np
        from lrpca import decompose
        Y = np.load({str(path.with_name("Y.npy"))!r})
        decompose(Y, {RANK}, options={{"checkpoint": {str(path)!r}}}, callback=lambda state: time.sleep(0.3))
    """
    np.save(path.with_name("Y.npy"), EXACT.Y)
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    try:
        deadline = time.monotonic() + 60
        while not path.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        # That may be the start; the next one is a second later.
        first = path.stat().st_mtime_ns if path.exists() else 0
        while path.exists() and path.stat().st_mtime_ns == first and process.poll() is None:
            time.sleep(0.02)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL and path.exists()
    seen: list[int] = []
    got = solve(EXACT.Y, RANK, path, lambda state: seen.append(state.iteration))
    assert_same(got, solve(EXACT.Y, RANK))
    assert 1 < seen[0] <= got.n_iter
    assert not path.exists()


def test_a_run_that_ends_at_max_iter_can_go_on(path: Path) -> None:
    short = solve(EXACT.Y, RANK, path, max_iter=4)
    assert short.reason == "max_iter" and path.exists()
    assert_same(solve(EXACT.Y, RANK, path, max_iter=4), short)
    with pytest.raises(ValueError, match=r"max_iter=3 is less than the 4 iterations of checkpoint='.*'; raise it, or"):
        solve(EXACT.Y, RANK, path, max_iter=3)
    assert_same(solve(EXACT.Y, RANK, path), solve(EXACT.Y, RANK))
    assert not path.exists()


def test_a_run_that_a_callback_stops_can_go_on(path: Path) -> None:
    d = solve(EXACT.Y, RANK, path, lambda state: state.iteration == 4)
    assert d.reason == "callback" and path.exists()
    # The same callback does not stop it again.
    assert_same(solve(EXACT.Y, RANK, path, lambda state: state.iteration == 4), solve(EXACT.Y, RANK))
    assert not path.exists()


def test_a_finished_run_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    existed: list[bool] = []
    solve(EXACT.Y, RANK, path, lambda state: existed.append(path.exists()))
    assert all(existed) and os.listdir(path.parent) == []


def test_generators_move_on(path: Path) -> None:
    """A generator is left where an uninterrupted run leaves it."""
    Y = planted((400, 330), rank=2, random_state=0).Y
    ends = []
    for interrupted in (False, True):
        if interrupted:
            interrupt(2, Y, 2, path, random_state=np.random.default_rng(5))
        generator = np.random.default_rng(5)
        solve(Y, 2, path, random_state=generator)
        ends.append(generator.bit_generator.state)
    assert ends[0] == ends[1]


def test_a_relative_path_means_where_the_run_began(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(path.parent)

    def move(state: State) -> bool:
        os.chdir(elsewhere)
        return state.iteration == 2

    solve(EXACT.Y, RANK, Path("run.npz"), move)
    assert path.exists() and not any(elsewhere.iterdir())


def interrupt_after(calls: int, *args: Any, **arguments: Any) -> None:
    left = [calls]

    def callback(state: State) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise EnoughError

    with pytest.raises(EnoughError):
        solve(*args, callback, **arguments)


@pytest.mark.parametrize("start", (None, (np.eye(120, 1) + 0.1, np.eye(100, 1) + 0.1)), ids=("none", "one component"))
def test_a_search_for_the_rank(start: Any, path: Path) -> None:
    """Started from one component, it takes several solves, each of which may be the one that is interrupted."""
    calls: list[int] = []
    expected = solve(EXACT.Y, None, None, lambda state: calls.append(state.iteration), start=start)
    assert expected.rank_choice is not None
    assert calls.count(1) == (1 if start is None else 2)
    # The third is next to the one in which a solve of too few components is ended early.
    for at in (3, 7, len(calls)):
        interrupt_after(at, EXACT.Y, None, path, start=start)
        seen: list[int] = []
        got = solve(EXACT.Y, None, path, lambda state: seen.append(state.iteration), start=start)  # noqa: B023
        assert_same(got, expected)
        assert got.rank_choice == expected.rank_choice
        # Solves before the one that was interrupted are made again.
        begun = max(index for index in range(at) if calls[index] == 1)
        assert seen == calls[:begun] + calls[at:]
        assert not path.exists()


def test_a_search_leaves_the_files_of_others_alone(path: Path) -> None:
    interrupt(3, EXACT.Y, None, path)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"belongs to another run \(its Y is another\)"):
        solve(EXACT.Y + 1, None, path)
    with pytest.raises(ValueError, match=r"belongs to another run \(its search for the rank is True, not False\)"):
        solve(EXACT.Y, json.loads(str(np.load(path)["facts"]))["fingerprint"]["rank"], path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rank": 4}, r"its rank is 3, not 4"),
        ({"Y": EXACT.Y[:, :90]}, r"its shape is 120 x 100, not 120 x 90"),
        ({"Y": EXACT.Y.astype(np.float32), "tol": 1e-8}, r"its dtype is float64, not float32"),
        ({"Y": EXACT.Y + 1}, r"its Y is another"),
        ({"Y": with_gaps()}, r"its Y is another"),
        ({"tol": 1e-5}, r"its tol is 1e-08, not 1e-05"),
        ({"schedule": "video", "tol": 1e-8}, r"its schedule is another"),
        ({"random_state": 1}, r"its random_state is another"),
        ({"row_weight": np.arange(120)}, r"its (Y|row_weight) is another"),
        ({"start": (EXACT.Y[:, :3], EXACT.Y.T[:, :3])}, r"its start is another"),
        ({"options": {"power_steps": 2}}, r"its options\['power_steps'\] is None, not 2"),
        ({"options": {"without": ["low_inlier_rows"]}}, r"its options\['without'\] is \[\], not \['low_inlier_rows'\]"),
        ({"options": {"change": 0.1}}, r"its options\['change'\] is None, not 0.1"),
    ],
    ids=lambda value: None if isinstance(value, str) else "+".join(value),
)
def test_the_file_of_another_run_is_refused(changed: dict[str, Any], message: str, path: Path) -> None:
    interrupt(2, EXACT.Y, RANK, path)
    content = path.read_bytes()
    arguments = {"Y": EXACT.Y, "rank": RANK, **changed}
    full = rf"^checkpoint='.*' belongs to another run \({message}\); delete it or choose another path$"
    with pytest.raises(ValueError, match=full):
        solve(arguments.pop("Y"), arguments.pop("rank"), path, **arguments)
    assert path.read_bytes() == content


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[:-100])
    elif how == "one bit":
        at = len(content) // 2
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("my notes\n")
    elif how == "array":
        with open(path, "wb") as file:
            np.save(file, np.ones(3))
    elif how == "decomposition":
        solve(EXACT.Y, RANK).save(path)
    else:
        arrays = dict(np.load(path))
        facts = json.loads(str(arrays["facts"]))
        if how == "no thresholds":
            del facts["state"]["thresholds"]
        elif how == "no state":
            del facts["state"]
        elif how == "no arrays":
            arrays = {}
        elif how == "version":
            facts["version"] = 99
        np.savez(path, **(arrays | {"facts": np.array(json.dumps(facts))}))


DAMAGES = ("truncated", "one bit", "empty", "text", "array", "decomposition")


@pytest.mark.parametrize("how", (*DAMAGES, "no thresholds", "no state", "no arrays", "version"))
def test_damaged_and_foreign_files_are_refused_and_left_alone(how: str, path: Path) -> None:
    interrupt(2, EXACT.Y, RANK, path)
    damage(path, how)
    content = path.read_bytes()
    newer, damaged = "has version 99; this lrpca reads 6, delete", r"is damaged, or no checkpoint \(.*\)"
    with pytest.raises(ValueError, match=rf"^checkpoint='.*' {newer if how == 'version' else damaged}"):
        solve(EXACT.Y, RANK, path)
    assert path.read_bytes() == content and len(os.listdir(path.parent)) == 1


def test_paths_that_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IsADirectoryError, match=r"options\['checkpoint'\]='.*' is a folder; give the name of a file"):
        solve(EXACT.Y, RANK, path.parent)
    with pytest.raises(FileNotFoundError, match=r"options\['checkpoint'\]='.*' is in a folder that does not exist; "):
        solve(EXACT.Y, RANK, path / "run.npz")
    os.mkfifo(path)
    with pytest.raises(FileExistsError, match=r"options\['checkpoint'\]='.*' is neither a file nor a folder"):
        solve(EXACT.Y, RANK, path)
    # Permissions do not keep a superuser out: a folder that takes no new file.
    monkeypatch.setattr(Path, "touch", lambda self: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(OSError, match=r"cannot be written \(Permission denied\); choose another place or free space"):
        solve(EXACT.Y, RANK, path.with_name("other.npz"))


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the file does not take the place of the one that ended the run; alone, it comes with advice."""
    interrupt(2, EXACT.Y, RANK, path)
    content = path.read_bytes()

    def full(*args: Any, **arrays: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(EnoughError) as caught:
        solve(EXACT.Y, RANK, path, lambda state: (_ for _ in ()).throw(EnoughError))
    assert "cannot be written (No space left on device)" in caught.value.__notes__[0]
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    with pytest.raises(OSError, match=r"^checkpoint='.*' cannot be written \(No space.*saved before is still there"):
        solve(EXACT.Y, RANK, path)
    assert path.read_bytes() == content and len(os.listdir(path.parent)) == 1


def test_a_link_is_followed(path: Path) -> None:
    link = path.with_name("link.npz")
    link.symlink_to(path)
    interrupt(2, EXACT.Y, RANK, link)
    assert link.is_symlink() and path.is_file()
    assert_same(solve(EXACT.Y, RANK, link), solve(EXACT.Y, RANK))
    assert link.is_symlink() and not path.exists()


def test_settings_name_the_file(path: Path) -> None:
    d = solve(EXACT.Y, RANK, path)
    assert d.settings["checkpoint"] == str(path)
    d.save(path.with_name("d.npz"))
    assert lrpca.Decomposition.load(path.with_name("d.npz")).settings == d.settings
