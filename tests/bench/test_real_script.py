"""The comparison on real data: rivals are what they are called, held-out entries stay hidden, absent data are said."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lrpca.testing import planted

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("measure", "real_matrices", "real_rivals", "real_data")


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
        for name in (*NAMES, "grid_solvers"):
            sys.modules.pop(name, None)


def _task(scripts: SimpleNamespace, Y: Any) -> Any:
    return scripts.real_data.hold_out(scripts.real_matrices.Real("made up", "traffic", Y))


def test_shrinking_averages_squares_and_cuts_the_rest(scripts: SimpleNamespace) -> None:
    frame = np.array([[0, 2, 100, 100, 9], [4, 6, 100, 104, 9], [9, 9, 9, 9, 9]], np.uint8)
    np.testing.assert_array_equal(scripts.real_matrices.shrink(frame, 2), [[3, 101]])
    assert scripts.real_matrices.shrink(frame, 1) is frame


def test_svd_of_a_complete_matrix_is_the_svd(scripts: SimpleNamespace) -> None:
    Y = planted((60, 90), rank=4, outlier_fraction=0.2, outlier_size=3.0).Y
    L, R = scripts.real_rivals.truncated_svd(Y, np.ones(Y.shape, bool), 3)
    U, values, Vt = np.linalg.svd(Y, full_matrices=False)
    best = (U[:, :3] * values[:3]) @ Vt[:3]
    assert np.linalg.norm(L @ R.T - best) < 1e-6 * np.linalg.norm(best)


def test_svd_fills_missing_entries_by_itself(scripts: SimpleNamespace) -> None:
    problem = planted((80, 60), rank=2, outlier_fraction=0.0, missing=0.05)
    L, R = scripts.real_rivals.truncated_svd(problem.Y, problem.observed, 2)
    assert problem.error(L @ R.T) < 1e-6
    L, R = scripts.real_rivals.truncated_svd(problem.Y, problem.observed, 2, rounds=1)
    assert problem.error(L @ R.T) > 1e-3


def test_medians_fill_and_empty_columns_become_zero(scripts: SimpleNamespace) -> None:
    Y = np.array([[1, 5, 7], [3, 200, 7], [9, 9, 7]], np.uint8)
    shown = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0]], bool)
    filled = scripts.real_rivals.filled_by_medians(Y, shown)
    np.testing.assert_array_equal(filled, [[1, 5, 0], [3, 7, 0], [2, 9, 0]])


@pytest.mark.skipif(not importlib.util.find_spec("pyrpca"), reason="pyrpca is not installed (extra bench)")
def test_pcp_recovers_an_easy_problem_with_gaps(scripts: SimpleNamespace) -> None:
    problem = planted((60, 50), rank=2, outlier_fraction=0.05, missing=0.05)
    pursuit = scripts.real_rivals.pcp(problem.Y, problem.observed)
    assert pursuit.rank < 10
    assert problem.error(pursuit.cut(2)) < 1e-3
    assert abs(pursuit.outlier_fraction - problem.outliers.sum() / problem.observed.sum()) < 0.03
    assert np.linalg.matrix_rank(pursuit.cut(1)) == 1


def test_held_out_entries_are_observed_hidden_and_scored(scripts: SimpleNamespace) -> None:
    problem = planted((200, 150), rank=2, missing=0.1)
    task = _task(scripts, problem.Y)
    assert abs(len(task.rows) / problem.observed.sum() - 0.05) < 0.01
    assert problem.observed[task.rows, task.columns].all()
    assert not task.shown[task.rows, task.columns].any()
    assert task.shown.sum() + len(task.rows) == problem.observed.sum()
    U, values, Vt = np.linalg.svd(problem.X, full_matrices=False)
    L, R = U[:, :2] * values[:2], Vt[:2].T
    # Fewer than half of the entries are outliers, and the truth fits the others.
    assert task.error(L, R) < 1e-12
    assert task.error(0 * L, R) == pytest.approx(np.median(np.abs(problem.Y[task.rows, task.columns])))


def test_solver_never_sees_what_is_held_out(scripts: SimpleNamespace) -> None:
    Y = planted((120, 100), rank=2).Y
    task = _task(scripts, Y)
    spoiled = Y.copy()
    spoiled[task.rows, task.columns] = 1e6
    clean, other = (scripts.real_data.decompose(_task(scripts, data), 2).d for data in (Y, spoiled))
    np.testing.assert_array_equal(clean.low_rank, other.low_rank)


def test_part_keeps_values_and_their_roles_together(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts.real_data, "PART", (20, 30))
    Y = np.arange(50 * 60, dtype=float).reshape(50, 60)
    task = _task(scripts, Y)
    part = task.part()
    assert part.real.Y.shape == (20, 30)
    i, j = np.divmod(part.real.Y.astype(int), 60)
    np.testing.assert_array_equal(part.shown, task.shown[i, j])
    held = set(zip(task.rows, task.columns, strict=True))
    assert {(int(i[a, b]), int(j[a, b])) for a, b in zip(part.rows, part.columns, strict=True)} <= held
    assert part.shown.sum() + len(part.rows) == part.real.Y.size


def test_absent_data_are_said_and_skipped(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "real_data.py"
    environment = {**os.environ, "LRPCA_DATA": str(tmp_path)}
    command = [sys.executable, str(script), "--only", "ngsim,vtest", "--results", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "ngsim is left out" in done.stdout and "vtest is left out" in done.stdout
    assert not (tmp_path / "out").exists()


def test_one_matrix_from_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "timeseries").mkdir()
    problem = planted((60, 50), rank=2, outlier_fraction=0.05, noise=0.02, missing=0.02)
    np.save(tmp_path / "timeseries" / "NGSIM_full.npy", problem.Y)
    script = ROOT / "benchmarks" / "real_data.py"
    environment = {**os.environ, "LRPCA_DATA": str(tmp_path)}
    command = [sys.executable, str(script), "--only", "ngsim", "--ranks", "2", "--rivals", "svd"]
    subprocess.run([*command, "--results", str(tmp_path)], env=environment, capture_output=True, text=True, check=True)
    text = (tmp_path / "real_data.json").read_text(encoding="utf-8")
    spec = importlib.util.spec_from_file_location("make_benchmarks_page", ROOT / "docs/make_benchmarks_page.py")
    assert spec is not None and spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    rendered = page.render_page(page.load_results(tmp_path))
    assert '"ngsim"' in text and "| ngsim | 60 x 50 | 2 | yes |" in rendered


@pytest.mark.parametrize(("option", "value"), [("--only", "nothing"), ("--ranks", "0"), ("--ranks", "1;2")])
def test_bad_options_are_refused(option: str, value: str) -> None:
    script = ROOT / "benchmarks" / "real_data.py"
    done = subprocess.run([sys.executable, str(script), option, value], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"{option}={value}" in done.stderr
