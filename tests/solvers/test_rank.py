"""Choosing the rank: planted ones are found, unclear ones reported, and nothing else changes."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca import Decomposition, decompose
from lrpca.cli import main
from lrpca.cli.exit_codes import ExitCode
from lrpca.exceptions import DiagnosisWarning
from lrpca.solvers.rank.choice import CLEAR, concerns
from lrpca.testing import planted

EASY = planted((120, 100), rank=4, outlier_fraction=0.1, noise=0.02, random_state=1)


def power_law(exponent: float, noise: float, n: int = 120) -> Any:
    """Return a matrix whose singular values decay as a power, with noise in units of its mean entry."""
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    Y = U * np.arange(1.0, n + 1) ** -exponent @ V.T
    return Y + noise * np.abs(Y).mean() * rng.standard_normal((n, n))


@pytest.mark.parametrize(
    ("shape", "rank", "kind"),
    [
        ((120, 100), 1, {"outlier_fraction": 0.3, "outlier_size": 10.0}),
        ((120, 100), 3, {"outlier_fraction": 0.3, "outlier_size": 1000.0, "noise": 0.05}),
        ((150, 150), 18, {"outlier_fraction": 0.1, "noise": 0.05}),
        ((150, 150), 12, {"outlier_fraction": 0.1, "outlier_size": 10.0, "condition": 20.0}),
        ((100, 300), 5, {"outlier_fraction": 0.2, "outlier_size": 10.0, "missing": 0.3, "noise": 0.01}),
        ((400, 60), 4, {"outlier_fraction": 0.2, "outlier_size": 10.0, "offset": 10.0, "noise": 0.05}),
        ((200, 200), 10, {"outlier_fraction": 0.3, "outlier_size": 10.0, "one_sided": True, "noise": 0.05}),
        ((120, 100), 5, {"outlier_fraction": 0.1, "dtype": np.float32}),
        ((100, 80), 3, {"outlier_fraction": 0.1, "outlier_size": 10.0, "noise": 0.02, "dtype": np.complex128}),
    ],
)
def test_planted_ranks_are_found(shape: tuple[int, int], rank: int, kind: dict[str, Any]) -> None:
    problem = planted(shape, rank=rank, random_state=3, **kind)
    d = decompose(problem.Y)  # and a warning would be an error
    assert d.rank == rank == d.diagnosis.components and d.L.shape[1] == d.R.shape[1] == rank and d.converged
    assert problem.error(d.low_rank) < max(1.2 * problem.error(decompose(problem.Y, rank).low_rank), 1e-5)
    choice = d.rank_choice
    assert choice is not None and (choice.asked, choice.found, choice.components) == ("auto", rank, rank)
    assert choice.gap > CLEAR and choice.tried[-1].shape == shape
    assert max(trial.rank for trial in choice.tried) > rank


@pytest.mark.parametrize("offset", (1e4, 1e5, 1e7))
@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")
def test_components_beside_a_large_offset_in_single_precision(offset: float) -> None:
    """They are weaker than a rounding of the offset's, but far above the noise that rounding makes of entries."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)) @ rng.standard_normal((3, 200))
    d = decompose((X + offset).astype(np.float32))
    assert d.rank == d.diagnosis.components == 4 and d.converged
    assert np.abs(d.L.astype(float) @ d.R.T - offset - X).max() < 1e-6 * offset


def test_integers() -> None:
    problem = planted((150, 120), rank=3, outlier_fraction=0.1, outlier_size=5.0, scale=8.0, offset=15.0)
    assert decompose(np.clip(np.rint(problem.Y), 0, 255).astype(np.uint8)).rank == 3


def test_the_edge_is_that_of_noise() -> None:
    problem = planted((120, 100), rank=4, outlier_fraction=0.1, noise=0.2, random_state=1)
    d = decompose(problem.Y)
    assert d.rank_choice is not None
    clean = (problem.S == 0).mean()
    noise = problem.Y - problem.X - problem.S
    expected = np.linalg.norm(noise, 2) / np.sqrt(clean)
    assert abs(d.rank_choice.edge - expected) < 0.15 * expected
    assert 0.8 < d.rank_choice.next_value / d.rank_choice.edge < 1.05
    assert d.rank_choice.next_value != d.rank_choice.edge
    values = np.linalg.svd(d.low_rank, compute_uv=False)[:4]
    np.testing.assert_allclose(d.rank_choice.singular_values, values, rtol=1e-6)


def test_a_weak_component_that_a_block_hides_is_found_in_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrpca.solvers.rank.scan._WHOLE", 10_000)
    monkeypatch.setattr("lrpca.solvers.rank.scan.BLOCK", 3_600)
    monkeypatch.setattr("lrpca.matrices.sample._OBSERVED", 10)
    rng = np.random.default_rng(0)
    U, V = np.linalg.qr(rng.standard_normal((400, 4)))[0], np.linalg.qr(rng.standard_normal((400, 4)))[0]
    # A block of 60 x 60 shows the last two at 0.9 times its edge, the whole at 2.3.
    noise = 1.0 / (2 * np.sqrt(400))
    Y = U * np.array([40.0, 30.0, 2.4, 2.3]) @ V.T + noise * rng.standard_normal((400, 400))
    Y[rng.random(Y.shape) < 0.05] += 5.0
    choice = decompose(Y).rank_choice
    assert choice is not None and choice.found == 4
    assert choice.tried[0].shape == (60, 60) and choice.tried[0].components == 2
    assert choice.tried[-1].shape == (400, 400)


def test_a_block_of_a_large_matrix_is_cheap() -> None:
    problem = planted((1200, 1000), rank=3, outlier_fraction=0.1, dtype=np.float32)
    d, known = decompose(problem.Y), decompose(problem.Y, 3)
    assert d.rank_choice is not None and d.rank_choice.tried[0].shape == (600, 600) and d.rank == 3
    assert known.n_reads < d.n_reads <= known.n_reads + 8  # the rough solution's reads are part of a read each


@pytest.mark.filterwarnings("ignore:S is empty")
@pytest.mark.parametrize(("exponent", "noise"), [(0.5, 0.01), (1.0, 0.05)])
def test_slowly_decaying_spectra_are_said(exponent: float, noise: float) -> None:
    with pytest.warns(DiagnosisWarning, match=r"rank='auto' found no gap in the spectrum: .*; look at"):
        d = decompose(power_law(exponent, noise))
    assert d.rank_choice is not None and d.rank_choice.gap < CLEAR and d.rank > 1


def test_as_many_as_are_looked_for_is_said() -> None:
    choice = decompose(EASY.Y).rank_choice
    assert choice is not None and concerns(choice) == []
    saturated = replace(choice, tried=(replace(choice.tried[-1], rank=4, components=4),))
    (message,) = concerns(saturated)
    assert "as many as were looked for" in message


@pytest.mark.filterwarnings("ignore:S is empty")
def test_nothing_there() -> None:
    noise = np.random.default_rng(0).standard_normal((80, 60))
    for Y in (noise, np.zeros((30, 20))):
        with pytest.warns(DiagnosisWarning, match="found no component: .*rank 1 is returned"):
            assert decompose(Y).rank == 1
    constant = decompose(np.full((30, 20), 3.0))
    assert constant.rank == 1 and np.allclose(constant.low_rank, 3.0)
    for shape in ((1, 5), (5, 1), (2, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert decompose(np.arange(1.0, 1 + np.prod(shape)).reshape(shape)).rank == 1


def test_a_share_of_the_variance() -> None:
    whole = decompose(EASY.Y)
    assert whole.rank_choice is not None
    values = np.array(whole.rank_choice.singular_values)
    shares = np.cumsum(values**2) / (np.sum(values**2) + EASY.Y.size * whole.noise_level**2)
    for count in (1, 2, 3, 4):
        d = decompose(EASY.Y, float(shares[count - 1] - 1e-4))
        assert d.rank == count and d.rank_choice is not None and d.rank_choice.components == 4
        assert d.rank_choice.explained == pytest.approx(shares[count - 1], rel=1e-3)
        assert d.diagnosis.messages == []
        np.testing.assert_allclose(d.low_rank, whole.L[:, :count] @ whole.R[:, :count].T, atol=1e-9)
    with pytest.warns(DiagnosisWarning, match=r"rank=0\.99999 is more than the 4 components explain, 0\.99"):
        assert decompose(EASY.Y, 0.99999).rank == 4


@pytest.mark.parametrize("rank", [0.0, 1.0, -0.5, 1.5, np.nan, True, "all"])
def test_what_is_no_rank(rank: Any) -> None:
    with pytest.raises(ValueError, match=r"rank=.* is not an integer; give one from 1 to 100, 'auto', or a share"):
        decompose(EASY.Y, rank)


def test_methods_that_need_a_rank_are_given_one() -> None:
    problem = planted((120, 100), rank=4, outlier_fraction=0.1, random_state=1)
    d = decompose(problem.Y, method="scaledgd")
    assert d.method == "scaledgd" and d.rank == 4 and d.rank_choice is not None and problem.error(d.low_rank) < 1e-4
    assert decompose(problem.Y, 4, method="scaledgd").n_reads < d.n_reads
    assert decompose(problem.Y, options={"without": ["significance"]}).rank == 4
    convex = decompose(problem.Y, "auto", method="pcp")
    assert convex.rank == 4 and convex.rank_choice is None
    with pytest.raises(ValueError, match=r"rank=0\.9 is a share, which method='pcp' does not use; leave rank out"):
        decompose(problem.Y, 0.9, method="pcp")


def test_same_seed_same_bits() -> None:
    one, two = (decompose(EASY.Y, random_state=5) for _ in range(2))
    assert np.array_equal(one.L, two.L) and one.rank_choice == two.rank_choice


def test_the_callback_sees_the_solution_only() -> None:
    seen: list[Any] = []
    d = decompose(EASY.Y, callback=lambda state: seen.append((state.iteration, state.L.shape[1])))
    assert [k for k, _ in seen] == [record.iteration for record in d.history] == list(range(1, d.n_iter + 1))
    assert d.rank_choice is not None and {width for _, width in seen} == {d.rank_choice.tried[-1].rank}
    assert np.array_equal(d.L, decompose(EASY.Y).L)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stopped = decompose(EASY.Y, callback=lambda state: state.iteration == 2)
    assert stopped.reason == "callback" and stopped.n_iter == 2


def test_start_is_a_first_guess() -> None:
    known = decompose(EASY.Y, 4)
    for width in (1, 4):
        d = decompose(EASY.Y, start=(known.L[:, :width], known.R[:, :width]))
        assert d.rank == 4 and d.rank_choice is not None and d.rank_choice.tried[0].shape == EASY.Y.shape
        assert EASY.error(d.low_rank) < 1.2 * EASY.error(known.low_rank)
    wide = decompose(EASY.Y, 8)
    assert decompose(EASY.Y, start=(wide.L, wide.R)).rank == 4
    with pytest.raises(ValueError, match=r"rank='auto' does not go with start.*; give a rank"):
        decompose(EASY.Y, start=(known.L, known.R), method="scaledgd")
    with pytest.raises(ValueError, match=r"^start\.shapes=.* do not fit Y\.shape=\S+ \d+\); pass .*, r from 1 to \d+$"):
        decompose(EASY.Y, start=(known.L, known.R[:, :2]))


@pytest.mark.filterwarnings("ignore:.*without influence")
def test_weights_and_masks() -> None:
    weight = np.ones(120)
    weight[:20] = 0.0
    Y = EASY.Y.copy()
    Y[:20] += 5 * np.random.default_rng(0).standard_normal((20, 100))
    assert decompose(Y, row_weight=weight).rank == 4
    mask = np.ones((120, 1), bool)
    mask[:20] = False
    assert decompose(Y, mask=mask).rank == 4


def test_saved_and_loaded(tmp_path: Path) -> None:
    d = decompose(EASY.Y)
    d.save(tmp_path / "d.npz")
    assert Decomposition.load(tmp_path / "d.npz").rank_choice == d.rank_choice is not None
    known = decompose(EASY.Y, 4)
    known.save(tmp_path / "known.npz")
    with np.load(tmp_path / "known.npz") as content:
        arrays = dict(content)
    facts = json.loads(str(arrays["facts"]))
    assert facts.pop("rank_choice") is None  # as files were before
    np.savez(tmp_path / "old.npz", **{**arrays, "facts": np.array(json.dumps(facts))})
    assert Decomposition.load(tmp_path / "old.npz").rank_choice is None


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("Y.npy", EASY.Y)
    assert main(["decompose", "Y.npy", "-o", "out"]) == ExitCode.DONE
    assert "rank 4, found (the weakest component is" in capsys.readouterr().out
    assert np.load("out/L.npy").shape == (120, 4)
    assert main(["decompose", "Y.npy", "-o", "some", "--rank", "0.3", "--json"]) == ExitCode.DONE
    summary = json.loads(capsys.readouterr().out)
    assert summary["rank"] < 4 and summary["rank_gap"] > CLEAR
    assert main(["decompose", "Y.npy", "-o", "given", "--rank", "4", "--json"]) == ExitCode.DONE
    assert "rank_gap" not in json.loads(capsys.readouterr().out)
    for text in ("0", "-1", "1.5", "nan", "five"):
        assert main(["decompose", "Y.npy", "-o", "none", "--rank", text]) == ExitCode.USAGE
        assert f"rank={text!r} is not a rank; give" in capsys.readouterr().err
