"""`lrpca models` as a user meets it: the shipped schedules, and all that is known of one."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io

import lrpca
from lrpca.cli import main
from lrpca.cli.exit_codes import ExitCode
from lrpca.learn.report import score_of, trained_on
from lrpca.schedule import shipped
from tests.helpers.cli import Capsys, Patch, error_line

pytest.importorskip("typer", reason="needs the extra cli")

DATA = {"source": "paper", "shape": [300, 200], "rank": 3, "outlier_fraction": 0.15, "outlier_size": 1.0}
SCORES = {
    "held_out_errors": [0.03, 0.004, 0.0005, 6e-5, 7e-6],
    "score": -3.7765,
    "errors_before": [0.03, 0.01, 0.005, None, 0.001],
    "history": [[0, -2.1], [5, None], [10, -3.7765]],
}
TRAINED = lrpca.Schedule(
    [0.0123456789, 4e-4, 1e-4],
    [0.0, 1.25, 0.875],
    shape=(300, 200),
    rank=3,
    tail=(1.0, 0.6),
    floor=2.0,
    meta={
        "command": "lrpca train --rank 3 -o m.json",
        "seed": 7,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "date": "2026-11-15 17:00 UTC",
        "data": DATA,
        "training": {"model": "frmnn", "way": "fast", "patience": None, "form": {"kind": "absolute"}},
        "scores": SCORES,
        "seconds": 12.3,
    },
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    TRAINED.save("m.json")
    return tmp_path


def words(text: str) -> dict[str, str]:
    """Return the lines of a listing by their first word."""
    return {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line.strip()}


def test_lists_the_shipped_schedules(capsys: Capsys) -> None:
    assert main(["models"]) == ExitCode.DONE
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["name", "kind", "form", "layers", "trained", "on", "score"]
    assert [line.split()[0] for line in lines] == shipped() and "default" in shipped()
    for line in lines:
        schedule = lrpca.Schedule.load(line.split()[0])
        assert schedule.kind in line and f"{schedule.influence}, {schedule.update}" in line
        assert trained_on(schedule) in line and f" {schedule.layers}" in line
        assert ("then on" in line) == (schedule.tail is not None)
        score = score_of(schedule)
        assert line.rstrip().endswith("–" if score is None else f"{score:.3g}")


def test_shows_all_numbers_of_one(capsys: Capsys) -> None:
    assert main(["models", "m.json"]) == ExitCode.DONE
    out = capsys.readouterr().out
    lines = words(out)
    assert lines["kind"].startswith("absolute") and lines["form"] == "soft influence, scaled update"
    assert lines["then"] == "step x 1, threshold x 0.6 in each pass" and lines["floor"].startswith("2 times")
    assert lines["meant"] == "for 300 x 200, rank 3" and lines["trained"] == "on rank 3, 300 x 200, 15% outliers"
    assert (
        lines["0"] == "0.0123457 – 0.03" and lines["1"] == "0.0004 1.25 0.004" and lines["2"] == "0.0001 0.875 0.0005"
    )
    assert lines["3"] == "6e-05 0.875 6e-05" and lines["4"] == "3.6e-05 0.875 7e-06"  # by the recurrence
    assert lines["command"] == "lrpca train --rank 3 -o m.json" and lines["seed"] == "7"
    assert lines["versions"] == "python 3.11.7, torch 2.13.0" and lines["training"] == "model frmnn, way fast"
    assert lines["scores"] == "score -3.7765" and lines["seconds"] == "12.3"


def test_shows_schedules_without_a_training(capsys: Capsys) -> None:
    assert main(["models", "default"]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "adaptive" in out and "set by hand" in out and "held-out error" not in out
    scipy.io.savemat("published.mat", {"ths": np.geomspace(0.01, 1e-5, 17)[None], "step": np.ones((1, 17))})
    assert main(["models", "published.mat"]) == ExitCode.DONE
    lines = words(capsys.readouterr().out)
    assert lines["layers"] == "16" and lines["meant"] == "for 1000 x 1000, rank 5" and lines["16"] == "1e-05 1"


def test_json(capsys: Capsys) -> None:
    assert main(["models", "--json"]) == ExitCode.DONE
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == shipped()
    for entry in listed:
        assert lrpca.Schedule(**{key: value for key, value in entry.items() if key != "name"}) == lrpca.Schedule.load(
            entry["name"]
        )
    assert main(["models", "m.json", "--json"]) == ExitCode.DONE
    one = json.loads(capsys.readouterr().out)
    stored = json.loads(Path("m.json").read_text())
    assert one == {"name": "m.json"} | {key: stored[key] for key in stored if key not in ("format", "version")}


def test_a_picture(capsys: Capsys) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the extra plot")
    assert main(["models", "m.json", "--plot", "m.png"]) == ExitCode.DONE
    with image.open("m.png") as picture:
        assert picture.width > 1000
    assert main(["models", "m.json", "--plot", "m.png"]) == ExitCode.OUTPUT
    assert "--force" in capsys.readouterr().err
    assert main(["models", "m.json", "--plot", "m.png", "--force"]) == ExitCode.DONE


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("nosuch",), ExitCode.INPUT, ("schedule='nosuch'", "default")),
        (("broken.json",), ExitCode.INPUT, ("broken.json", "not valid JSON")),
        (("none.mat",), ExitCode.INPUT, ("none.mat", "not a file")),
        (("--plot", "m.png"), ExitCode.USAGE, ("--plot=m.png", "NAME")),
        (("default", "--plot", "m.png"), ExitCode.INPUT, ("'set by hand'", "no scores")),
        (("m.json", "--plot", "m.gif"), ExitCode.OUTPUT, ("m.gif", "m.png")),
        (("m.json", "--plot", "none/m.png"), ExitCode.OUTPUT, ("none/m.png", "does not exist")),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], code: ExitCode, parts: tuple[str, ...], capsys: Capsys
) -> None:
    Path("broken.json").write_text("{")
    assert main(["models", *arguments]) == code
    error_line(capsys, *parts)
    assert not Path("m.png").exists()


def test_loads_neither_pytorch_nor_matplotlib() -> None:
    code = (
        "import sys; from lrpca.cli import main; main(['models']); main(['models', 'm.json']); "
        "print({'torch', 'matplotlib', 'numba'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
