"""Training on users' data: what is accepted and refused, what the network is shown, and what it learns."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca import ConvergenceWarning, Schedule
from lrpca.testing import planted

torch = pytest.importorskip("torch", reason="lrpca.learn needs PyTorch")

from lrpca.learn import train  # noqa: E402
from lrpca.learn.data import as_source, fingerprint  # noqa: E402
from lrpca.learn.problems import PaperProblems, Source  # noqa: E402
from lrpca.learn.request import Request, make_trainer, resolve  # noqa: E402
from lrpca.learn.tensors import prepare  # noqa: E402

SHAPE, RANK = (60, 50), 2
DRAWN = PaperProblems(SHAPE, RANK)
REQUEST = Request(rank=RANK, shape=SHAPE, model="fnn", layers=3)


def problem(seed: int = 0, **arguments: Any) -> Any:
    return planted(SHAPE, **({"rank": RANK, "outlier_fraction": 0.1, "random_state": seed} | arguments))


def source_of(data: Any, labels: Any = None, rank: int = RANK) -> Source:
    return as_source(data, labels, DRAWN, rank=rank, seed=0)


def first(data: Any, labels: Any = None, rank: int = RANK) -> Any:
    return source_of(data, labels, rank).draw(np.random.default_rng(0))


# What is accepted


def test_no_data_and_sources_are_passed_on() -> None:
    assert source_of(None) is DRAWN
    other = PaperProblems((20, 20), 1)
    assert source_of(other) is other


@pytest.mark.parametrize(
    "change",
    [
        lambda Y: Y,
        lambda Y: Y.astype(np.float32),
        lambda Y: np.asfortranarray(Y),
        lambda Y: np.repeat(Y, 2, axis=1)[:, ::2],
        lambda Y: Y[::-1],
        lambda Y: Y.astype(">f8"),
        lambda Y: Y.astype(np.float16),
        lambda Y: (40 * Y / np.abs(Y).max()).astype(np.int8),
        lambda Y: (40 + 40 * Y / np.abs(Y).max()).astype(np.uint16),
        lambda Y: np.ma.MaskedArray(Y, Y > np.quantile(Y, 0.9)),
    ],
)
def test_arrays_of_every_kind(change: Any) -> None:
    """The network sees the numbers as they are, and the user's array is not touched."""
    given = change(problem().Y)
    before = given.copy()
    drawn = first(given)
    seen = prepare(drawn)
    values = np.asarray(before.data if isinstance(before, np.ma.MaskedArray) else before, np.float64)
    assert np.array_equal(seen.Y.numpy()[drawn.observed], values[drawn.observed])
    hidden = np.zeros(SHAPE, bool)
    hidden[drawn.held_out[:2]] = True
    assert np.array_equal(drawn.observed | hidden, ~np.ma.getmaskarray(before))
    assert np.array_equal(np.ma.getdata(given), np.ma.getdata(before))


@pytest.mark.parametrize("as_text", [True, False])
def test_files(as_text: bool, tmp_path: Path) -> None:
    Y, path = problem(missing=0.1).Y, tmp_path / "Y.npy"
    np.save(path, Y)
    drawn, same = first([str(path) if as_text else path]), first([Y])
    assert np.array_equal(drawn.Y, same.Y, equal_nan=True)
    assert np.array_equal(drawn.observed, same.observed)


def test_a_pair_of_files(tmp_path: Path) -> None:
    p = problem()
    paths = tmp_path / "Y.npy", tmp_path / "X.npy"
    for path, matrix in zip(paths, (p.Y, p.X), strict=True):
        np.save(path, matrix)
    A, B = first([paths]).truth
    assert np.allclose(A @ B.T, p.X)


def test_a_file_mapped_into_memory_is_met_in_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Y = (rng.standard_normal((3000, 2)) @ rng.standard_normal((2, 400))).astype(np.float32)
    Y[:, 7] = np.nan
    Y[11] = np.nan
    np.save(tmp_path / "Y.npy", Y)
    mapped = np.load(tmp_path / "Y.npy", mmap_mode="r")
    source = source_of(mapped)
    drawn = [source.draw(np.random.default_rng(k)) for k in range(2)]
    assert drawn[0].Y.shape == (256, 256)
    assert drawn[0].Y.dtype == np.float32 and not isinstance(drawn[0].Y, np.memmap) and drawn[0].Y.flags.writeable
    assert not np.isnan(drawn[0].Y).any()  # of a row or column without entries nothing can be learned
    assert not np.array_equal(drawn[0].Y, drawn[1].Y)
    block = source.matrices[0].cut(RANK, np.random.default_rng(0))  # type: ignore[attr-defined]
    assert np.array_equal(block.values, Y[np.ix_(block.rows, block.columns)])
    truth = first([(mapped, np.nan_to_num(mapped))]).truth
    assert truth[0].shape == (256, 2)


# What the network is shown


def test_held_out_entries_are_hidden_and_validate() -> None:
    p = problem(missing=0.2)
    drawn = first(p.Y)
    data = prepare(drawn)
    rows, columns, values = drawn.held_out
    assert len(rows) == round(0.05 * p.observed.sum()) and len(set(zip(rows.tolist(), columns.tolist(), strict=True)))
    assert p.observed[rows, columns].all() and np.array_equal(values, p.Y[rows, columns])
    assert not data.observed[rows, columns].any() and not data.Y[rows, columns].any()
    assert int(data.observed.sum()) + len(rows) == p.observed.sum()
    sampled = set(zip(data.entries.rows.tolist(), data.entries.columns.tolist(), strict=True))
    assert not sampled & set(zip(rows.tolist(), columns.tolist(), strict=True))


def test_the_loss_is_the_middle_of_what_was_missed() -> None:
    drawn = first(problem(noise=0.1).Y)
    data = prepare(drawn)
    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((SHAPE[0], RANK)), rng.standard_normal((SHAPE[1], RANK))
    rows, columns, values = drawn.held_out
    sizes = np.sort(np.abs(values - (L @ R.T)[rows, columns]))
    quarter = len(sizes) // 4
    middle = sizes[quarter : len(sizes) - quarter].mean()
    expected = np.log(middle / np.abs(values).mean())
    tensors = [torch.tensor(factor, requires_grad=True) for factor in (L, R)]
    loss = data.log_loss(*tensors)
    assert loss.item() == pytest.approx(expected)
    assert 0.5 * np.median(sizes) < middle < 2 * np.median(sizes)
    loss.backward()
    step = 1e-6 * rng.standard_normal(L.shape)
    with torch.no_grad():
        moved = [float(data.log_loss(tensors[0] + sign * torch.tensor(step), tensors[1])) for sign in (1, -1)]
    assert (moved[0] - moved[1]) / 2 == pytest.approx(float((tensors[0].grad * torch.tensor(step)).sum()), rel=1e-4)


def test_integers_keep_their_step() -> None:
    Y = np.rint(100 + 50 * problem().Y / np.abs(problem().Y).max())
    assert prepare(first(Y.astype(np.uint8))).rules.least == 1.0
    assert prepare(first(Y)).rules.least < 1e-100


def test_every_fourth_matrix_validates() -> None:
    Ys = [np.full(SHAPE, k + 1.0) for k in range(9)]

    def met(source: Source) -> set[float]:
        return {float(source.draw(np.random.default_rng(k)).Y[0, 0]) for k in range(60)}

    for data in (Ys, [(Y, Y) for Y in Ys]):
        training, validating = source_of(data, rank=1).split()
        assert met(validating) == {4.0, 8.0} and met(training) == {1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 9.0}
    alone = source_of(Ys[:3], rank=1)
    assert alone.split() == (alone, alone)


# Labels


def test_labels_are_the_low_rank_parts() -> None:
    p = problem()
    for drawn in (first([(p.Y, p.X)]), first([p.Y], "lrpca"), first(p.Y, "altproj")):
        A, B = drawn.truth
        assert np.linalg.norm(A @ B.T - p.X) < 1e-3 * np.linalg.norm(p.X)
        assert np.allclose(A.T @ A, np.eye(A.shape[1])) and drawn.held_out is None


def test_labels_of_blocks_belong_to_them() -> None:
    p = planted((700, 400), rank=RANK, outlier_fraction=0.05, random_state=0)
    for source in (source_of([(p.Y, p.X)]), source_of(p.Y, "lrpca")):
        drawn = source.draw(np.random.default_rng(0))
        block = source.matrices[0].cut(RANK, _second(np.random.default_rng(0)))  # type: ignore[attr-defined]
        A, B = drawn.truth
        X = p.X[np.ix_(block.rows, block.columns)]
        assert drawn.Y.shape == X.shape != p.X.shape
        assert np.linalg.norm(A @ B.T - X) < 1e-6 * np.linalg.norm(X)


def _second(rng: np.random.Generator) -> np.random.Generator:
    rng.integers(1)  # the choice of the matrix
    return rng


def test_a_label_that_did_not_converge_is_said() -> None:
    hard = problem(outlier_size=5.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source_of([problem().Y, hard.Y], "altproj")
    said = [str(warning.message) for warning in caught if warning.category is ConvergenceWarning]
    assert len(said) == 1 and said[0].startswith("labels='altproj' on data[1]: not converged: stalled")
    assert {warning.filename for warning in caught} == {__file__}


def test_missing_entries_and_masks_reach_the_method() -> None:
    p = problem(missing=0.2)
    masked = np.ma.MaskedArray(np.where(p.observed, p.Y, 1e9), ~p.observed)
    for Y in (p.Y, masked):
        A, B = first([Y], "lrpca").truth
        assert np.linalg.norm(A @ B.T - p.X) < 1e-6 * np.linalg.norm(p.X)


# What is refused


def _with(entry: float, of: Any = None) -> Any:
    Y = np.array(problem().Y if of is None else of)
    Y[3, 4] = entry
    return Y


P = problem()
BAD = [
    ([], "data=[] holds nothing to train on; pass at least one matrix"),
    (3, "data=int is neither an array, a path, nor a list of these"),
    ({"Y": P.Y}, "data=dict is neither"),
    ([P.Y, 3], "data[1]=int is neither an array, a path, nor a pair (Y, X)"),
    ([[[1.0, 2.0], [3.0, 4.0]]], "data[0]=list is neither"),
    ([(P.Y, P.X, P.X)], "data[0]=tuple is neither"),
    ((P.Y, P.X), "data=(.., ..) may be a pair or two matrices; write [(Y, X)] for a pair, [Y1, Y2] for two"),
    ([P.Y, (P.Y, P.X)], "data[1] is a pair, data[0] is not; give pairs (Y, X) only, or data only"),
    ([(P.Y, P.X), P.Y], "data[1] is data alone, data[0] one; give"),
    (P.Y[0], "data.ndim=1 is not 2; pass data[None] for one row"),
    ([P.Y, P.Y[0]], "data[1].ndim=1 is not 2; pass data[1][None] for one row, or data[1][:, None]"),
    (P.Y[None], "data.ndim=3 is not 2; pass a list of matrices"),
    ([P.Y[:0]], "data[0].shape=(0, 50) has no entries"),
    ([P.Y + 0j], "data[0].dtype=complex128 is complex, which training does not take; pass real data"),
    ([np.full(SHAPE, "a")], "data[0].dtype=<U1 is not numeric"),
    ([_with(np.inf)], "data[0][3, 4]=inf is not finite; mark missing entries with NaN"),
    ([np.full(SHAPE, np.nan)], "data[0] has no observed entry (all NaN or masked)"),
    ([np.zeros(SHAPE)], "data[0] is all zero, from which nothing can be learned"),
    ([np.ones((60, 3))], "rank=2 is above half of min(data[0].shape)=3; choose at most 1"),
    ([np.ones((60, 1))], "data[0].shape=(60, 1) leaves no rank to choose"),
    (
        [np.where(np.arange(50) < 3, P.Y, np.nan)],
        "of the rows or columns that have an observed entry; choose at most 1",
    ),
    ([torch.ones(SHAPE).to_sparse()], "data[0].layout=torch.sparse_coo is not dense; pass "),
    ([torch.ones(SHAPE, dtype=torch.complex64)], "data[0].dtype=complex64 is complex"),
    ([(P.Y, P.X.T)], "data[0][1].shape=(50, 60) differs from data[0][0].shape=(60, 50)"),
    ([(P.Y, P.X), (P.Y, _with(np.nan, P.X))], "data[1][1][3, 4]=nan is not finite; a low-rank part has no missing"),
    ([(P.Y, _with(-np.inf, P.X))], "data[0][1][3, 4]=-inf is not finite"),
    ([(P.Y, np.zeros(SHAPE))], "data[0][1] is all zero"),
    ([(P.Y, P.X + 0j)], "data[0][1].dtype=complex128 is complex"),
    ([(P.Y, P.X[0])], "data[0][1].ndim=1 is not 2"),
    ([(P.Y, np.ma.MaskedArray(P.X, P.X > 0))], "data[0][1] has masked entries"),
    ([(_with(np.inf), P.X)], "data[0][0][3, 4]=inf is not finite"),
    ("nowhere.npy", "path='nowhere.npy' does not exist"),
    ([("nowhere.npy", P.X)], "path='nowhere.npy' does not exist"),
    (["tests"], "path='tests' is a folder"),
]


@pytest.mark.parametrize(("data", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_bad_data_are_refused(data: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises((ValueError, TypeError, OSError)) as refused:
        train(data=data, rank=RANK)
    message = str(refused.value)
    assert words in message and ";" in message and "\n" not in message


@pytest.mark.parametrize(
    ("data", "labels", "words"),
    [
        ([P.Y], "nonsense", "labels='nonsense' is unknown; use a method of lrpca.decompose (lrpca, scaledgd,"),
        ([P.Y], 3, "labels=3 is unknown"),
        ([(P.Y, P.X)], "altproj", "labels='altproj' is given beside pairs (Y, X)"),
        (None, "altproj", "labels='altproj' has no meaning, as there are no data to label"),
        (DRAWN, "altproj", "labels='altproj' has no meaning, as a source brings its own labels"),
    ],
)
def test_bad_labels_are_refused(data: Any, labels: Any, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        train(data=data, labels=labels, rank=RANK)
    assert words in str(refused.value) and ";" in str(refused.value)


def test_a_sparse_matrix_is_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match=r"data\[0\]=csr_matrix is sparse.*; pass data\[0\].toarray\(\)"):
        source_of([sparse.csr_matrix(np.eye(20))])


# What it brings


@pytest.fixture(scope="module")
def scene() -> Any:
    """Return a problem that takes more than three passes."""
    return planted((90, 70), rank=RANK, outlier_fraction=0.35, noise=0.02, condition=3.0, random_state=1)


@pytest.mark.parametrize("how", ["pairs", "labelled", "alone"])
def test_every_way_improves_a_held_out_error(how: str, scene: Any) -> None:
    """Three learned layers beat three passes of the default, on entries that training has not seen."""
    hidden = np.random.default_rng(5).random(scene.Y.shape) < 0.1
    shown = np.where(hidden, np.nan, scene.Y)
    data = [(shown, scene.X)] if how == "pairs" else [shown]
    labels = "lrpca" if how == "labelled" else None
    learned = train(data=data, labels=labels, rank=RANK, model="fnn", layers=3, steps=24)
    scores = learned.meta["scores"]
    assert scores["held_out_errors"][-1] < scores["errors_before"][-1]
    untrained = replace(learned, thresholds=[20.0, 2.5, 2.5, 2.5], steps=[0.0, 1.0, 1.0, 1.0])
    fits = [lrpca.decompose(shown, RANK, schedule=schedule, max_iter=3).low_rank for schedule in (untrained, learned)]
    before, after = (scene.error(fit) for fit in fits)
    assert after < 0.8 * before
    before, after = (float(np.median(np.abs(scene.Y - fit)[hidden])) for fit in fits)
    assert after < 0.9 * before


def test_the_seed_decides() -> None:
    def numbers(seed: int, Y: Any) -> tuple[Any, ...]:
        schedule = train(data=[Y], rank=RANK, layers=2, steps=3, random_state=seed)
        return schedule.thresholds, schedule.steps, schedule.meta["scores"]

    Y = problem(noise=0.1).Y
    assert numbers(0, Y) == numbers(0, Y.copy(order="F")) != numbers(1, Y)


def test_data_alone_are_validated_by_the_last_third_of_the_layers() -> None:
    """What counts is where the layers end; against a label all count."""
    Y, X = problem(noise=0.1).Y, problem(noise=0.1).X
    for data, counted in ((Y, slice(4, None)), ([(Y, X)], slice(1, None))):
        trainer, validation = make_trainer(resolve(replace(REQUEST, layers=6, depth=6)), source_of(data))
        errors = validation.curve(trainer.network, 6)
        assert validation.score(errors) == pytest.approx(np.log10(errors[counted]).mean())
        if data is Y:
            first_problem = prepare(source_of(data).draw(np.random.default_rng([0, 0, 0])))
            layers = [first_problem.log_loss(one.L, one.R).item() for one in trainer.network.layers(first_problem, 6)]
            assert trainer.step() == pytest.approx(np.mean(layers[counted]), abs=1e-9)


def test_data_alone_begin_low() -> None:
    """At a noise floor thresholds come down to its width; against a label, and if told, they begin as ever."""
    given = Schedule([20.0, 3.0, 3.0], [0.0, 1.0, 1.0], kind="adaptive", influence="redescending", update="tangent")
    p = problem(noise=0.1)
    begin = {}
    for name, data, form in (("alone", p.Y, "adaptive"), ("given", p.Y, given), ("pairs", [(p.Y, p.X)], "adaptive")):
        trainer, _ = make_trainer(resolve(replace(REQUEST, form=form, layers=2)), source_of(data))
        begin[name] = trainer.network.schedule().thresholds[1:]
    assert begin["alone"] == pytest.approx((2.5, 1.0))
    assert begin["given"] == pytest.approx((3.0, 3.0)) and begin["pairs"] == pytest.approx((2.5, 2.5))


def test_what_a_model_tells_of_its_data(tmp_path: Path) -> None:
    Y = problem(noise=0.1).Y
    model = train(data=[Y, Y], rank=RANK, layers=2, steps=1)
    told = model.meta["data"]
    assert (told["source"], told["count"], told["shapes"]) == ("data alone", 2, [[60, 50], [60, 50]])
    model.save(tmp_path / "model.json")
    assert Schedule.load(tmp_path / "model.json") == model
    assert source_of([Y], "lrpca").describe()["source"] == "data labelled by lrpca"
    assert source_of([(Y, Y)]).describe()["source"] == "pairs"


def test_fingerprints_tell_data_apart(tmp_path: Path) -> None:
    Y = problem().Y
    np.save(tmp_path / "Y.npy", Y)
    assert fingerprint([Y]) == fingerprint([np.load(tmp_path / "Y.npy", mmap_mode="r")]) == fingerprint([Y.copy("F")])
    others = [Y.T, Y.astype(np.float32), _with(0.5), Y[:-1]]
    assert len({fingerprint([other]) for other in [Y, *others]}) == 5
    assert fingerprint([Y, Y]) != fingerprint([Y])


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"rank": RANK, "layers": 2, "steps": 2, "checkpoint": tmp_path / "state.json"}
    train(data=[problem().Y], **arguments)
    with pytest.raises(ValueError, match="is of another training"):
        train(data=[problem(seed=1).Y], resume=True, **arguments)


def test_absolute_numbers_for_data_are_in_their_units() -> None:
    """No rule rescales them: a longer video has the same grey values."""
    Y = 1000 * problem(noise=0.1).Y
    schedule = train(data=[Y], rank=RANK, form="paper", model="fnn", layers=2, steps=2)
    assert schedule.shape is None and schedule.rank is None
    assert schedule.scaled_to((10_000, 10_000), 5) == schedule
    tenth = train(data=[Y / 10], rank=RANK, form="paper", model="fnn", layers=2, steps=2)
    assert np.allclose(schedule.thresholds, 10 * np.array(tenth.thresholds), rtol=1e-3)


def test_the_papers_way_takes_data_too() -> None:
    schedule = train(data=[problem(noise=0.1).Y], rank=RANK, form="paper", way="paper", model="fnn", layers=2, steps=9)
    assert np.isfinite(schedule.thresholds).all()
