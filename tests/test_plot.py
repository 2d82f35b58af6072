from dataclasses import dataclass, field

import numpy as np
import pytest

from lrpca import plot

matplotlib = pytest.importorskip("matplotlib", reason="needs the extra plot")


@dataclass(frozen=True)
class Record:
    iteration: int
    change: float | None
    threshold: float | None = 1.0
    step: float | None = None
    residual: float | None = 0.1
    kept: float | None = 0.9
    seconds: float | None = 0.5


@dataclass
class Result:
    """What the plots use of a Decomposition, with numbers known in advance."""

    L: np.ndarray
    R: np.ndarray
    outlier_threshold: object = 1.0
    history: list = field(default_factory=list)


@pytest.fixture
def axes():
    from matplotlib.figure import Figure

    return Figure().subplots()


@pytest.fixture
def result():
    L, R = np.diag([4.0, 3.0, 1.0])[:, :2], np.diag([4.0, 3.0, 1.0, 1.0])[:, :2]
    history = [Record(1, None), Record(2, 1e-1), Record(3, 1e-3), Record(4, 1e-5)]
    return Result(L, R, history=history)


def test_convergence_draws_what_the_history_holds(axes, result):
    (line,) = plot.convergence(result, ax=axes)
    assert line.get_xdata().tolist() == [2, 3, 4]  # the first iteration has no change
    assert line.get_ydata().tolist() == [1e-1, 1e-3, 1e-5]
    assert axes.get_yscale() == "log"
    assert axes.get_legend() is None
    other = axes.figure.add_subplot()
    plot.convergence(result, quantity="threshold", ax=other)
    assert other.get_yscale() == "linear"


def test_convergence_against_time_and_with_names(axes, result):
    lines = plot.convergence({"one": result, "two": result}, against="seconds", ax=axes)
    assert [line.get_label() for line in lines] == ["one", "two"]
    assert lines[0].get_xdata().tolist() == [1.0, 1.5, 2.0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one", "two"]


@pytest.mark.parametrize("history", [[], [Record(1, None)], [Record(1, 0.0)]])
def test_convergence_of_almost_nothing(axes, history):
    (line,) = plot.convergence(Result(np.ones((2, 1)), np.ones((2, 1)), history=history), ax=axes)
    assert len(line.get_ydata()) == sum(record.change is not None for record in history)
    axes.figure.canvas.draw()


def test_convergence_refuses_unknown_quantities(axes, result):
    with pytest.raises(ValueError, match="quantity='loss'.*change"):
        plot.convergence(result, quantity="loss", ax=axes)
    with pytest.raises(ValueError, match="against='days'"):
        plot.convergence(result, against="days", ax=axes)


def test_residual_histogram_shows_shares_and_threshold(axes):
    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((300, 2)), rng.standard_normal((200, 2))
    noise = rng.uniform(-0.5, 0.5, (300, 200))
    far = rng.random(noise.shape) < 0.1
    Y = L @ R.T + np.where(far, 2.0, noise)
    Y[:, 0] = np.nan
    patch, lines = plot.residual_histogram(Y, Result(L, R, outlier_threshold=np.array([[1.0], [3.0]])[:1]), ax=axes)
    shares, edges, _ = patch.get_data()
    middle = (edges[:-1] + edges[1:]) / 2
    assert shares[np.abs(middle) < 0.55].sum() == pytest.approx(0.9, abs=0.01)
    assert shares[np.abs(middle - 2) < 0.1].sum() == pytest.approx(0.1, abs=0.01)
    assert sorted(line.get_xdata()[0] for line in lines) == [-1.0, 1.0]


def test_residual_histogram_of_unsigned_and_complex_data(axes):
    L, R = np.full((20, 1), 10.0, np.float32), np.full((30, 1), 20.0, np.float32)
    dark = np.full((20, 30), 195, np.uint8)  # unsigned subtraction would wrap to 251
    patch, _ = plot.residual_histogram(dark, Result(L, R, outlier_threshold=4.0), ax=axes)
    shares, edges, _ = patch.get_data()
    assert shares.max() == 1.0 and edges[np.argmax(shares)] <= -5 <= edges[np.argmax(shares) + 1]
    turned = (1j * np.full((20, 30), 3.0) + 200).astype(np.complex64)
    patch, lines = plot.residual_histogram(turned, Result(L + 0j, R + 0j, outlier_threshold=4.0), ax=axes)
    shares, edges, _ = patch.get_data()
    assert edges[0] == 0 and edges[np.argmax(shares)] <= 3 <= edges[np.argmax(shares) + 1]
    assert len(lines) == 1


def test_residual_histogram_is_of_the_matrix_and_of_what_it_shows(axes):
    L, R = np.full((20, 1), 10.0), np.full((30, 1), 20.0)
    with pytest.raises(ValueError, match=r"^Y\.shape=\(10, 30\) is not \(20, 30\); pass the matrix that was decomp"):
        plot.residual_histogram(np.ones((10, 30)), Result(L, R, outlier_threshold=4.0), ax=axes)
    hidden = np.ma.masked_array(np.full((20, 30), 199, np.uint8), np.arange(30) % 2 == np.zeros((20, 1)))
    hidden.data[hidden.mask] = 0
    patch, _ = plot.residual_histogram(hidden, Result(L, R, outlier_threshold=400.0), ax=axes)
    assert patch.get_data()[0].max() == 1.0


def test_style_does_not_outlive_its_block():
    before = dict(matplotlib.rcParams)
    with plot.style(dark=True):
        assert matplotlib.rcParams["text.color"] != before["text.color"]
    assert dict(matplotlib.rcParams) == before


def test_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install lrpca\[plot\]"), plot.style():
        pass
