"""``lrpca reproduce`` as a user meets it: what is written, what is printed, and every exit code."""

import base64
import html
import io
import json
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lrpca.bench.experiments import methods
from lrpca.bench.experiments.measurement import Setup, shares
from lrpca.bench.experiments.reproduce import EXPERIMENTS
from lrpca.cli import main
from lrpca.cli.exit_codes import ExitCode
from tests.helpers.cli import Capsys, Patch, error_line, start

pytest.importorskip("typer", reason="needs the extra cli")
Image = pytest.importorskip("PIL.Image", reason="needs the extra plot")
# Those that compare solvers; what is measured of learning is in test_experiments_learning.py.
COMPARISONS, LEARNING = list(EXPERIMENTS)[:4], list(EXPERIMENTS)[4:]
TINY = Setup(shares(60, 0.1, 0.2), repeat=2, max_iter=12, tuning_n=60, tuning_iterations=4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Return an empty working directory, and make every experiment tiny."""
    monkeypatch.chdir(tmp_path)
    for name, values in (("GAMMAS", (None,)), ("STEPS", (0.7,)), ("BETAS", (1.0,))):
        monkeypatch.setattr(methods, name, values)
    for name in COMPARISONS:
        experiment = EXPERIMENTS[name]
        settings = tuple(replace(setting, n=60) for setting in experiment.quick.settings[:2])
        monkeypatch.setitem(EXPERIMENTS, name, replace(experiment, quick=replace(TINY, settings=settings)))
    return tmp_path


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_lists_what_there_is(arguments: list[str], folder: Path, capsys: Capsys) -> None:
    assert main(["reproduce", *arguments]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*COMPARISONS, *LEARNING]
    assert COMPARISONS == ["convergence", "iteration-time", "total-time", "recovery"]
    assert LEARNING == ["models", "training-time", "generalisation", "numbers", "video"]
    assert "n = 3000" in lines[3] and not any(folder.iterdir())


@pytest.mark.parametrize("name", COMPARISONS)
def test_writes_numbers_and_a_page(name: str, folder: Path, capsys: Capsys) -> None:
    assert main(["reproduce", name, "--quick", "--seed", "4", "-o", "deep/out"]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert sorted(file.name for file in (folder / "deep" / "out").iterdir()) == [f"{name}.html", f"{name}.json"]
    record = json.loads((folder / "deep" / "out" / f"{name}.json").read_text(encoding="utf-8"))
    assert record["command"] == f"lrpca reproduce {name} --quick --seed 4" and record["quick"] is True
    assert {"hardware", "versions", "date", "tables", "notes", "claims", "runs"} <= set(record)
    assert record["setup"]["seed"] == 4 and {run["seed"] for run in record["runs"]} == {4, 5}
    assert record["hardware"]["cores"] >= 1 and "numba" in record["versions"]
    page = (folder / "deep" / "out" / f"{name}.html").read_text(encoding="utf-8")
    check_page(page, record)
    assert record["tables"][0]["caption"] in out and f"deep/out/{name}.html" in out and "confirmed" in out
    for claim in record["claims"]:
        assert claim["measured"] in out
    first = out.splitlines()[0]
    assert "(small version)" in first and "compared with this library's solvers" in first
    assert out.count("cannot tell: small version") == len(record["claims"])
    assert "problem 1 of 2" in err and str(folder) not in page + json.dumps(record)


def check_page(page: str, record: dict) -> None:
    """Check that a page is self-contained, shows the plot, and says what the JSON says."""
    links = re.findall(r'(?:src|srcset|href)="([^"]*)"', page)
    assert links and all(link.startswith("data:") for link in links)
    pictures = [link for link in links if link.startswith("data:image/png;base64,")]
    assert len(pictures) == 2  # for light pages and for dark ones
    for picture in pictures:
        assert Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2]))).width > 800
    whole = re.sub(r'<span class="whole">(.*?)</span>|<wbr>', r"\1", page)
    text = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", whole)))
    for claim in record["claims"]:
        assert claim["confirmed"] is None
        assert f"cannot tell: small version {claim['of']} {claim['paper']} {claim['measured']}" in text
    assert "measured again (small version)" in text and "compared with this library's solvers" in text
    assert "small version" in text and record["command"] in text and record["hardware"]["processor"] in text


def test_help_tells_its_own_exit_codes(capsys: Capsys) -> None:
    assert main(["reproduce", "--help"]) == ExitCode.DONE
    text = capsys.readouterr().out
    assert "even if claims were not confirmed" in text and "not converged" not in text and "cannot be written" in text


def test_repeat_and_a_second_run_in_the_same_folder(folder: Path, capsys: Capsys) -> None:
    for repeat, force in (("1", []), ("3", ["--force"])):
        command = ["reproduce", "iteration-time", "--quick", "--repeat", repeat, "-o", "."]
        assert main([*command, *force]) == ExitCode.DONE
        record = json.loads((folder / "iteration-time.json").read_text(encoding="utf-8"))
        assert record["setup"]["repeat"] == int(repeat) and f"--repeat {repeat}" in record["command"]
        assert {run["seed"] for run in record["runs"]} == set(range(int(repeat)))
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        capsys.readouterr()
        assert main(command) == ExitCode.OUTPUT
        assert "iteration-time.json' exists" in capsys.readouterr().err
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_the_same_seed_gives_the_same_errors(folder: Path) -> None:
    found = []
    for name in ("one", "two"):
        assert main(["reproduce", "convergence", "--quick", "--repeat", "1", "-o", name]) == ExitCode.DONE
        record = json.loads((folder / name / "convergence.json").read_text(encoding="utf-8"))
        found.append([(run["label"], run["setting"], run["errors"]) for run in record["runs"]])
    assert found[0] == found[1]


@pytest.mark.parametrize("arguments", [["nothing"], ["recovery", "--repeat", "0"], ["recovery", "--seed", "-1"]])
def test_wrong_usage(arguments: list[str], folder: Path, capsys: Capsys) -> None:
    assert main(["reproduce", *arguments]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "Traceback" not in err and not any(folder.iterdir())


@pytest.mark.parametrize("output", ["file", "file/out"])
def test_output_that_cannot_be_written(output: str, folder: Path, capsys: Capsys) -> None:
    (folder / "file").write_text("x")
    assert main(["reproduce", "recovery", "--quick", "-o", output]) == ExitCode.OUTPUT
    error_line(capsys, f"path={output!r} ")  # before measuring
    assert (folder / "file").read_text() == "x"


def test_broken_model_is_refused(folder: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.setenv("LRPCA_DATA", str(folder))
    (folder / "published-lrpca").mkdir()
    (folder / "published-lrpca" / "lrpcanet_alpha0.1.mat").write_text("not a model")
    assert main(["reproduce", "convergence", "--quick", "-o", "out"]) == ExitCode.INPUT
    assert "cannot be read as .mat" in capsys.readouterr().err and not (folder / "out").exists()


def test_without_matplotlib_says_what_to_install(folder: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["reproduce", "recovery", "--quick"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "lrpca: plots need matplotlib, which is not installed; pip install lrpca[plot]\n"


def test_interrupted_while_writing(folder: Path, monkeypatch: Patch) -> None:
    def interrupt(file: Path, *_: object, **__: object) -> None:
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    (folder / "iteration-time.json").write_text("old")
    monkeypatch.setattr(Path, "write_text", interrupt)
    assert main(["reproduce", "iteration-time", "--quick", "--repeat", "1", "-o", ".", "-f"]) == ExitCode.INTERRUPTED
    assert {file.name: file.read_text() for file in folder.iterdir()} == {"iteration-time.json": "old"}


def test_interrupted_in_the_middle(folder: Path) -> None:
    process = start("reproduce", "iteration-time", "--quick", "--repeat=1000", "-o", "out", PYTHONUNBUFFERED="1")
    assert process.stderr is not None
    while "problem 1 of 1000" not in (line := process.stderr.readline()):
        assert line, "ended before it began to measure"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED and out == "" and "Traceback" not in err
    assert "interrupted, nothing half-written is left" in err and not any(folder.iterdir())


def test_stored_results_become_a_section_of_the_documentation(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs")
    from make_pages import experiments_page

    assert main(["reproduce", "iteration-time", "--quick", "-o", "results"]) == ExitCode.DONE
    record = json.loads((folder / "results" / "iteration-time.json").read_text(encoding="utf-8"))
    text = experiments_page(folder / "results", folder / "experiments_figures")
    assert text.count("Not stored yet; `lrpca reproduce ") == len(EXPERIMENTS) - 1
    assert "$ lrpca reproduce iteration-time --quick" in text
    assert "![Time of one iteration](experiments_figures/iteration-time.png)" in text
    for claim in record["claims"]:
        verdict = {True: "yes", False: "no", None: "cannot tell"}[claim["confirmed"]]
        assert f"| {verdict} | {claim['of']} | {claim['paper']} | {claim['measured']} |" in text
    with Image.open(folder / "experiments_figures" / "iteration-time.png") as figure:
        assert figure.width > 800
    assert [file.name for file in (folder / "experiments_figures").iterdir()] == ["iteration-time.png"]
