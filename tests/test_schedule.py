"""Schedules: their numbers, their files, and the paper's scaling rule."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrpca import Schedule
from lrpca.schedule import shipped

BASE = {"format": "lrpca-schedule", "version": 1, "thresholds": [0.1, 0.05], "steps": [0.0, 1.0]}
SMALL = Schedule([0.1, 0.05, 0.02], [0, 1.4, 0.9])


def write(folder: Path, content: Any, name: str = "model.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_numbers_of_the_layers_and_the_end() -> None:
    assert SMALL.layers == 2 and SMALL.at(3) is SMALL.at(100) is None
    assert SMALL.at(1) == (0.05, 1.4) and SMALL.at(2) == (0.02, 0.9)


def test_tail_shrinks_geometrically() -> None:
    s = dataclasses.replace(SMALL, tail=(0.5, 0.25))
    assert s.at(2) == (0.02, 0.9)
    for k in (3, 4, 10):
        numbers = s.at(k)
        assert numbers is not None
        assert numbers == pytest.approx((0.02 * 0.25 ** (k - 2), 0.9 * 0.5 ** (k - 2)), rel=1e-14)


@pytest.mark.parametrize("kind", ("absolute", "adaptive"))
def test_numbers_that_outgrow_their_range_are_infinite(kind: str) -> None:
    s = Schedule([0.1, 0.05], [0, 1], kind=kind, tail=(1e308, 1e200))
    assert s.at(2) == (0.05 * 1e200, 1e308)
    assert s.at(3) == (math.inf, math.inf)
    assert Schedule([0.1, 0], [0, 1], tail=(1, 1e308)).at(9) == (0.0, 1.0)


def test_sequences_become_tuples_and_do_not_follow_the_caller() -> None:
    thresholds = [0.1, 0.05]
    s = Schedule(thresholds, np.array([0, 1]), shape=[10, 20], rank=2, tail=[1, 0.5])  # type: ignore[arg-type]
    thresholds[1] = 7.0
    assert s.thresholds == (0.1, 0.05)
    assert (s.steps, s.shape, s.tail) == ((0.0, 1.0), (10, 20), (1.0, 0.5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        s.rank = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("shape", "rank", "factor"),
    [
        ((1000, 1000), 5, 1.0),
        ((3000, 3000), 5, 1 / 3),
        ((1000, 1000), 15, 3.0),
        ((500, 2000), 10, 2.0),
        ((100, 400), 5, 5.0),
    ],
)
def test_papers_scaling_rule(shape: tuple[int, int], rank: int, factor: float) -> None:
    base = Schedule([0.1, 0.05], [0, 1.3], shape=(1000, 1000), rank=5, tail=(0.9, 0.6))
    scaled = base.scaled_to(shape, rank)
    assert scaled.thresholds == pytest.approx([0.1 * factor, 0.05 * factor], rel=1e-14)
    assert (scaled.steps, scaled.tail, scaled.shape, scaled.rank) == (base.steps, base.tail, shape, rank)
    assert scaled.scaled_to((1000, 1000), 5).thresholds == pytest.approx(base.thresholds)


def test_no_scaling_without_a_base_or_where_adaptive() -> None:
    halves = dataclasses.replace(SMALL, shape=(10, 10)), dataclasses.replace(SMALL, rank=2)
    for s in (SMALL, *halves, Schedule.load("default")):
        assert s.scaled_to((77, 33), 4) is s


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"thresholds": [0.1, math.nan]}, r"thresholds=.*nan.*finite"),
        ({"thresholds": [0.1, math.inf]}, r"thresholds=.*inf.*finite"),
        ({"steps": [0, math.nan]}, r"steps=.*nan.*finite"),
        ({"thresholds": [0.1, -0.5]}, r"thresholds=.*-0\.5.*negative"),
        ({"thresholds": "ab"}, r"thresholds='ab'.*e\.g\."),
        ({"steps": [0, 0]}, r"steps=.*not positive"),
        ({"steps": [0, -1]}, r"steps=.*not positive"),
        ({"kind": "adaptive", "thresholds": [1, 0]}, r"thresholds=.*contains 0"),
        ({"meta": 5}, r"meta=5 is not a dict"),
        ({"decay": None}, r"decay=.*None"),
        ({"thresholds": None}, r"thresholds=None.*e\.g\."),
        ({"thresholds": [0.1]}, r"length 1, 2.*at least 2"),
        ({"steps": [0, 1, 1]}, r"length 2, 3.*same length"),
        ({"kind": "adaptative"}, r"kind='adaptative'.*'absolute' or 'adaptive'"),
        ({"influence": "huber"}, r"influence='huber'.*soft, hard, redescending"),
        ({"update": "newton"}, r"update='newton'.*scaled, tangent, own_gram"),
        ({"cutoff": 0.5}, r"cutoff=0\.5"),
        ({"cutoff": math.nan}, r"cutoff=.*nan"),
        ({"tail": (1.0,)}, r"tail=.*\(beta, phi\)"),
        ({"tail": (1.0, -0.6)}, r"tail=.*positive"),
        ({"tail": (1.0, math.nan)}, r"tail=.*nan"),
        ({"shape": (10,)}, r"shape=\(10,\).*pair"),
        ({"shape": (0, 10)}, r"shape=\(0, 10\).*positive"),
        ({"rank": 0}, r"rank=0"),
        ({"decay": 1.5}, r"decay=1\.5.*between 0 and 1"),
        ({"decay": 0}, r"decay=0.*between 0 and 1"),
        ({"decay": math.nan}, r"decay=.*nan"),
        ({"thresholds": [10**400, 1]}, r"^thresholds=\.\.\. contains an integer beyond 1\.8e\+308; pass smaller"),
        ({"steps": [0, 10**5000]}, r"^steps=\.\.\. contains an integer beyond"),
        ({"tail": (10**400, 1)}, r"^tail=\.\.\. contains an integer beyond"),
        ({"shape": (10**400, 10)}, r"^shape=\.\.\. contains an integer of at least 2⁶³; pass those of the data"),
        ({"rank": 10**300}, r"^rank=\.\.\. contains an integer of at least 2⁶³"),
    ],
)
def test_refused_numbers_are_named_with_a_remedy(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**{"thresholds": [0.1, 0.05], "steps": [0, 1], **change})


positive = st.floats(1e-9, 1e6)


@given(
    numbers=st.lists(st.tuples(positive, positive), min_size=2, max_size=6),
    tail=st.none() | st.tuples(st.floats(0.1, 1), st.floats(0.1, 1)),
    kind=st.sampled_from(("absolute", "adaptive")),
    influence=st.sampled_from(("soft", "hard", "redescending")),
    update=st.sampled_from(("scaled", "tangent", "own_gram")),
    cutoff=st.none() | st.floats(1, 10),
    decay=st.floats(0.01, 0.99),
    base=st.none() | st.tuples(st.integers(1, 9999), st.integers(1, 9999), st.integers(1, 99)),
)
def test_round_trip_to_the_last_bit(tmp_path_factory: Any, numbers: Any, base: Any, **fields: Any) -> None:
    thresholds, steps = zip(*numbers, strict=True)
    where = {} if base is None else {"shape": base[:2], "rank": base[2]}
    s = Schedule(thresholds, steps, **fields, **where, meta={"command": "train", "seed": 3})
    path = tmp_path_factory.mktemp("schedules") / "model.json"
    s.save(path)
    loaded = Schedule.load(path)
    assert loaded == s
    assert loaded.meta == s.meta


def test_saved_file_is_plain_json_and_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text("old")
    SMALL.save(path)
    content = json.loads(path.read_text())
    assert content["format"] == "lrpca-schedule"
    assert content["thresholds"] == [0.1, 0.05, 0.02]
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    SMALL.save(path)
    before = path.read_bytes()
    with pytest.raises((TypeError, ValueError)):
        dataclasses.replace(SMALL, meta={"not": object()}).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]


def test_absent_file_lists_the_shipped_models(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-model.*shipped models: .*default"):
        Schedule.load("no-such-model")
    with pytest.raises(FileNotFoundError, match="folder"):
        (tmp_path / "folder").mkdir()
        Schedule.load(tmp_path / "folder")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON.*complete"),
        ("{", "not valid JSON.*complete"),
        (json.dumps(BASE)[:-20], "not valid JSON.*complete"),
        ("[1, 2]", "not an lrpca schedule"),
        ("3", "not an lrpca schedule"),
        ({"weights": [1, 2]}, "not an lrpca schedule.*format"),
        ({**BASE, "format": "other"}, "not an lrpca schedule"),
        ({**BASE, "version": 2}, "version 2.*reads 1"),
        ({**BASE, "surprise": 1}, "unknown fields.*surprise.*known fields"),
        ({key: value for key, value in BASE.items() if key != "steps"}, "steps"),
        ({**BASE, "thresholds": [0.1, float("nan")]}, "nan.*finite"),
        ({**BASE, "thresholds": "ab"}, "thresholds"),
        ({**BASE, "rank": "five"}, "rank=.*five"),
        ({**BASE, "shape": 5}, "shape=5"),
        ({**BASE, "tail": 5}, "tail=5"),
        ({**BASE, "cutoff": "wide"}, "cutoff=.*wide"),
        ({**BASE, "decay": [1]}, "decay=.*1"),
        ({**BASE, "decay": None}, "decay=.*None"),
        ('{"thresholds": [' + "1" * 5000 + "]}", "not valid JSON.*digits"),
        ({**BASE, "quantile": 0.3}, "unknown fields.*quantile.*known fields.*decay"),
    ],
)
def test_broken_and_foreign_files(tmp_path: Path, content: Any, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ValueError, match=rf"^schedule={str(path)!r} .*{message}"):
        Schedule.load(path)


def test_binary_file_points_to_from_mat(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(bytes(range(128, 256)))
    with pytest.raises(ValueError, match="from_mat"):
        Schedule.load(path)


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_model_loads(name: str) -> None:
    s = Schedule.load(name)
    assert s.at(1) is not None and "default" in shipped()
    assert s.meta, "a shipped model says where its numbers come from"
    # The thresholds of the video model are grey levels, whatever the size of the frames: they are never scaled.
    unscaled = s.shape is None and s.rank is None and name == "video"
    assert s.kind == "adaptive" or (s.shape is not None and s.rank is not None) or unscaled


def save_mat(path: Path, content: dict[str, Any]) -> Path:
    from scipy.io import savemat

    savemat(path, content)
    return path


def test_from_mat(tmp_path: Path) -> None:
    thresholds, steps = np.linspace(0.1, 0.01, 17)[None], np.linspace(0, 1.5, 17)[None]
    path = save_mat(tmp_path / "published.mat", {"ths": thresholds, "step": steps})
    s = Schedule.from_mat(path, shape=(1000, 1000), rank=5)
    np.testing.assert_array_equal(s.thresholds, thresholds[0])
    np.testing.assert_array_equal(s.steps, steps[0])
    assert (s.kind, s.shape, s.rank) == ("absolute", (1000, 1000), 5)
    assert (s.influence, s.update, s.tail) == ("soft", "scaled", None)
    assert s.layers == 16
    assert Schedule.from_mat(str(path), shape=(1000, 1000), rank=5) == s


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weights": np.ones(3)}, "holds weights.*'ths' and 'step'"),
        ({"ths": [[1.0, np.nan]], "step": [[0.0, 1.0]]}, "holds no schedule: thresholds=.*nan.*; every number must be"),
    ],
)
def test_mat_files_that_hold_no_schedule(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = save_mat(tmp_path / "bad.mat", content)
    with pytest.raises(ValueError, match=rf"^path={str(path)!r} {message}"):
        Schedule.from_mat(path, shape=(10, 10), rank=1)
    with pytest.raises(FileNotFoundError, match="nowhere.mat"):
        Schedule.from_mat(tmp_path / "nowhere.mat", shape=(10, 10), rank=1)


@pytest.mark.parametrize("keep", (0, 60, 128, 200))
def test_truncated_mat(tmp_path: Path, keep: int) -> None:
    rng = np.random.default_rng(0)
    path = save_mat(tmp_path / "cut.mat", {"ths": rng.random((1, 17)), "step": rng.random((1, 17))})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"cut\.mat"):
        Schedule.from_mat(path, shape=(10, 10), rank=1)
