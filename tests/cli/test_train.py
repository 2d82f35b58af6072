"""`lrpca train` as a user meets it: what is written, what is printed, every exit code, and interrupts."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer", reason="needs the extra cli")

import lrpca
from lrpca.cli import main
from lrpca.cli import train as cli_train
from lrpca.cli.exit_codes import ExitCode
from lrpca.testing import planted
from tests.helpers.cli import Capsys, Patch, error_line, start
from tests.helpers.full_disk import full_disk

torch = pytest.importorskip("torch", reason="needs the extra learn")
# Problems that are made: small ones, few layers and few steps.
MADE = ("--rank", "2", "--shape", "60x50")
BRIEF = ("--layers", "2", "--steps", "6")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """Return an empty working directory; PyTorch has one thread, as the machine may be busy."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(before)


@pytest.fixture
def files(folder: Path) -> Path:
    """Put two matrices and their low-rank parts into the folder."""
    for k in range(2):
        problem = planted((60, 50), rank=2, outlier_fraction=0.1, random_state=k)
        np.save(f"Y{k}.npy", problem.Y)
        np.save(f"X{k}.npy", problem.X)
    return folder


def train(*arguments: str) -> int:
    return main(["train", *arguments])


def names() -> list[str]:
    return sorted(os.listdir())


def numbers(path: str) -> tuple[Any, ...]:
    schedule = lrpca.Schedule.load(path)
    return schedule.thresholds, schedule.steps, schedule.tail


# --- what is written and printed ---------------------------------------------------------------------------


def test_a_model_that_says_where_it_comes_from(capsys: Capsys) -> None:
    assert train(*MADE, *BRIEF, "--outliers", "0.2", "--seed", "3", "-o", "models/mine.json") == ExitCode.DONE
    out, err = capsys.readouterr()
    assert os.listdir("models") == ["mine.json"]  # the checkpoint is gone
    schedule = lrpca.Schedule.load("models/mine.json")
    meta = schedule.meta
    command = "lrpca train --rank 2 --shape 60x50 --layers 2 --steps 6 --outliers 0.2 --seed 3 -o models/mine.json"
    assert meta["command"] == command and meta["seed"] == 3 and meta["versions"]["torch"] == torch.__version__
    assert meta["data"]["outlier_fraction"] == 0.2 and meta["data"]["shape"] == [60, 50] and meta["data"]["rank"] == 2
    assert meta["training"]["steps"] == meta["training"]["steps_taken"] == 6
    scores = meta["scores"]
    assert len(scores["held_out_errors"]) == len(scores["errors_before"]) == 3
    assert [step for step, _ in scores["history"]] == list(range(7))
    assert scores["score"] == min(score for _, score in scores["history"])
    lines = err.splitlines()
    assert len(lines) == 7 and lines[0].startswith("step 0 of 6  stage ") and "remaining 0 s" in lines[-1]
    assert "loss -  score" in lines[0] and "loss -" in lines[1] and "loss -  score" not in lines[1]
    table = [line.split() for line in out.splitlines()[2:5]]
    assert [row[0] for row in table] == ["0", "1", "2"]
    assert [float(row[2]) for row in table] == scores["held_out_errors"]
    assert f"{scores['score']:.3f}" in out and "6 of 6" in out and "models/mine.json" in out
    (next_command,) = (line.split(maxsplit=1)[1].strip() for line in out.splitlines() if line.split()[:1] == ["next"])
    np.save("Y.npy", planted((60, 50), rank=2, outlier_fraction=0.1, random_state=1).Y)
    assert main(shlex.split(next_command)[1:]) == ExitCode.DONE and Path("result.npz").exists()


def test_quiet_and_the_same_seed(capsys: Capsys) -> None:
    for name, seed in (("one", "0"), ("two", "0"), ("other", "1")):
        assert train(*MADE, *BRIEF, "--seed", seed, "-o", f"{name}.json", "-q") == ExitCode.DONE
    assert capsys.readouterr() == ("", "")
    assert numbers("one.json") == numbers("two.json") != numbers("other.json")


@pytest.mark.parametrize("model", ["fnn", "rnn", "frmnn"])
def test_models_of_the_papers_form(model: str) -> None:
    own = () if model == "rnn" else ("--layers", "2")
    floor = () if model == "fnn" else ("--floor", "2.5")
    settings = ("--form", "paper", "--model", model, "--steps", "3", *own, *floor)
    assert train(*MADE, *settings, "-o", "m.json", "-q") == ExitCode.DONE
    schedule = lrpca.Schedule.load("m.json")
    assert (schedule.kind, schedule.influence, schedule.update) == ("absolute", "soft", "scaled")
    assert schedule.shape == (60, 50) and schedule.rank == 2 and schedule.floor == (2.5 if floor else None)
    assert (schedule.tail is None) == (model == "fnn") and schedule.layers == (1 if model == "rnn" else 2)


def test_the_papers_way(capsys: Capsys) -> None:
    settings = ("--form", "paper", "--way", "paper", "--layers", "1", "--steps", "20", "--model", "fnn")
    assert train(*MADE, *settings, "-o", "m.json", "--plot", "m.png") == ExitCode.DONE
    assert lrpca.Schedule.load("m.json").meta["training"]["way"] == "paper"
    assert "layer 0" in capsys.readouterr().err and names() == ["m.json", "m.png"]


def test_beginning_from_a_schedule() -> None:
    begun = lrpca.Schedule([20, 5.0, 4.5, 4.0], [0, 1, 1, 1], "adaptive", influence="redescending", update="tangent")
    begun.save("begun.json")
    assert train(*MADE, "--begin", "begun.json", "--model", "fnn", "--steps", "1", "-o", "m.json") == ExitCode.DONE
    schedule = lrpca.Schedule.load("m.json")
    assert schedule.layers == 3
    np.testing.assert_allclose(schedule.thresholds, begun.thresholds, rtol=0.2)  # one step does not lead far
    assert schedule.thresholds != begun.thresholds
    assert train(*MADE, *BRIEF, "--begin", "default", "-o", "other.json", "-q") == ExitCode.DONE


def test_absolute_numbers_to_begin_with_are_scaled_to_the_size() -> None:
    begun = lrpca.Schedule([0.1, 0.02, 0.01], [0, 0.9, 0.9], shape=(240, 200), rank=2)
    begun.save("begun.json")
    assert train(*MADE, "--begin", "begun.json", "--model", "fnn", "--steps", "1", "-o", "m.json") == ExitCode.DONE
    ratios = np.divide(lrpca.Schedule.load("m.json").thresholds, begun.thresholds)
    np.testing.assert_allclose(ratios, 4, rtol=0.3)  # (240 / 60), and one step does not lead far


def test_problems_of_many_kinds(monkeypatch: Patch, capsys: Capsys) -> None:
    from lrpca.learn.problems import Mixture

    monkeypatch.setattr("lrpca.learn.problems.Mixture", lambda: Mixture(shapes=[(50, 40), (30, 60)], ranks=[1, 2]))
    assert train("--mixture", "--layers", "1", "--steps", "2", "-o", "m.json") == ExitCode.DONE
    assert lrpca.Schedule.load("m.json").meta["data"]["source"] == "mixture"
    assert "--rank N --schedule m.json" in capsys.readouterr().out


def test_a_picture(capsys: Capsys) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the extra plot")
    assert train(*MADE, *BRIEF, "-o", "m.json", "--plot", "pictures/m.png") == ExitCode.DONE
    assert "pictures/m.png" in capsys.readouterr().out
    with image.open("pictures/m.png") as picture:
        pixels = np.asarray(picture.convert("RGB"), int)
    assert pixels.shape[1] > 1000
    for half in np.array_split(pixels, 2, axis=1):  # a blue line in both panels
        assert (np.abs(half - (0x25, 0x63, 0xEB)).sum(axis=2) < 30).sum() > 200


def test_a_live_table_on_a_terminal(monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    assert train(*MADE, *BRIEF, "-o", "m.json") == ExitCode.DONE
    out, err = capsys.readouterr()
    assert "\x1b[" in err and "remaining" in err and "6 of 6" in err and "\x1b[" not in out


# --- your own matrices --------------------------------------------------------------------------------------


def test_files_alone_with_labels_and_with_their_truth(files: Path, capsys: Capsys) -> None:
    given = ("Y0.npy", "Y1.npy", "--rank", "2", "--layers", "1", "--steps", "2")
    sources = []
    for name, more in {
        "alone": (),
        "labels": ("--labels", "accaltproj"),
        "pairs": ("--truth", "X0.npy", "--truth", "X1.npy"),
    }.items():
        assert train(*given, *more, "-o", f"{name}.json") == ExitCode.DONE, name
        out, err = capsys.readouterr()
        assert "lrpca decompose Y0.npy --rank 2 --schedule" in out and err.startswith("reading the data")
        assert ("accaltproj" in err.splitlines()[0]) == (name == "labels")
        sources.append(json.dumps(lrpca.Schedule.load(f"{name}.json").meta["data"]))
    assert len(set(sources)) == 3


def test_pairs_are_in_the_order_of_the_files(files: Path) -> None:
    np.save("X1.npy", np.load("X1.npy")[:, :40])  # does not fit Y1
    np.save("Y0.npy", np.load("Y0.npy")[:, :40])
    crossed = ("--truth", "X1.npy", "--truth", "X0.npy", "--rank", "2", "--layers", "1", "--steps", "1")
    assert train("Y0.npy", "Y1.npy", *crossed, "-o", "m.json", "-q") == ExitCode.DONE


# --- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--rank", "0"), ExitCode.USAGE, ("rank=0",)),
        (("--rank", "40", "--shape", "60x50"), ExitCode.USAGE, ("rank=40", "50")),
        (("--shape", "60by50"), ExitCode.USAGE, ("shape='60by50'", "2000x500")),
        (("--model", "cnn"), ExitCode.USAGE, ("model='cnn'", "fnn, rnn, frmnn")),
        (("--form", "paper", "--begin", "default"), ExitCode.USAGE, ("--form=paper", "--begin")),
        (("--way", "paper"), ExitCode.USAGE, ("way='paper'", "form='paper'")),
        (("--floor", "2"), ExitCode.USAGE, ("--floor=2", "--form paper")),
        (("--floor", "-1", "--form", "paper"), ExitCode.USAGE, ("--floor=-1",)),
        (("--device", "tpu9"), ExitCode.USAGE, ("device='tpu9'", "cuda")),
        (("--truth", "X0.npy"), ExitCode.USAGE, ("--truth=X0.npy", "FILES")),
        (("--labels", "altproj"), ExitCode.USAGE, ("--labels=altproj", "FILES")),
        (("--mixture", "--rank", "3"), ExitCode.USAGE, ("--rank=3", "--mixture")),
        (("--mixture", "--form", "paper"), ExitCode.USAGE, ("--mixture", "--form adaptive")),
        (("Y0.npy",), ExitCode.USAGE, ("--rank is required", "FILES")),
        (("Y0.npy", "--rank", "2", "--shape", "60"), ExitCode.USAGE, ("--shape=60", "FILES")),
        (("Y0.npy", "--rank", "2", "--mixture"), ExitCode.USAGE, ("--mixture=True", "FILES")),
        (("Y0.npy", "Y1.npy", "--rank", "2", "--truth", "X0.npy"), ExitCode.USAGE, ("--truth=1", "2 FILES")),
        (("Y0.npy", "--rank", "2", "--truth", "X0.npy", "--labels", "pcp"), ExitCode.USAGE, ("--labels=pcp",)),
        (("Y0.npy", "--rank", "2", "--labels", "nosuch"), ExitCode.USAGE, ("'nosuch'", "altproj")),
        (("none.npy", "--rank", "2"), ExitCode.INPUT, ("none.npy", "does not exist")),
        (("Y0.npy", "--rank", "2", "--truth", "none.npy"), ExitCode.INPUT, ("none.npy", "does not exist")),
        (("Y0.npy", "--rank", "51"), ExitCode.INPUT, ("rank=51", "Y0.npy")),
        (("short.npy", "--rank", "2"), ExitCode.INPUT, ("short.npy", "truncated")),
        (("Y0.npy", "--rank", "2", "--truth", "odd.npy"), ExitCode.INPUT, ("odd.npy.shape=(50, 60)", "=(60, 50)")),
        (("Y0.npy", "--rank", "2", "--truth", "gaps.npy"), ExitCode.INPUT, ("gaps.npy[3, 4]=nan",)),
        (("Y0.npy", "complex.npy", "--rank", "2"), ExitCode.INPUT, ("complex.npy.dtype", "real")),
        (("--begin", "nosuch"), ExitCode.INPUT, ("schedule='nosuch'", "default")),
        (("--resume",), ExitCode.INPUT, ("--resume", "'m.checkpoint.json'", "start again")),
    ],
)
def test_bad_input_is_one_line_before_any_work(
    files: Path, capsys: Capsys, arguments: tuple[str, ...], code: ExitCode, words: tuple[str, ...]
) -> None:
    Path("short.npy").write_bytes(Path("Y0.npy").read_bytes()[:5000])
    np.save("odd.npy", np.load("X0.npy").T)
    np.save("complex.npy", 1j * np.load("X0.npy"))
    np.save("gaps.npy", np.where(np.arange(3000).reshape(60, 50) == 154, np.nan, np.load("X0.npy")))
    before = names()
    assert train(*arguments, "-o", "m.json", "-q") == code
    error_line(capsys, *words)
    assert names() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "m.npz"), ("m.npz", "m.json")),
        (("-o", "old.json"), ("old.json", "--force")),
        (("-o", "file/m.json"), ("'file'", "to be a folder")),
        (("-o", "folder.json", "--force"), ("folder.json", "in the way")),
        (("-o", "pipe.json", "--force"), ("pipe.json", "in the way")),
        (("-o", "Y.json", "Y.json", "--rank", "2", "--force"), ("Y.json", "both the model and the input")),
        (("-o", "m.json", "--checkpoint", "m.json"), ("m.json", "both the checkpoint and the model")),
        (("-o", "m.json", "--checkpoint", "old.json", "--force"), ("old.json", "not a checkpoint")),
        (("-o", "m.json", "--checkpoint", "file/c.json"), ("'file'", "to be a folder")),
        (("-o", "m.json", "--plot", "m.jpg"), ("m.jpg", "m.png")),
        (("-o", "m.json", "--plot", "old.png"), ("old.png", "--force")),
    ],
)
def test_outputs_that_cannot_be_written(
    folder: Path, capsys: Capsys, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    for name in ("file", "old.json", "old.png", "Y.json"):
        Path(name).write_text("mine")
    Path("folder.json").mkdir()
    os.mkfifo("pipe.json")
    before = names()
    assert train(*arguments) == ExitCode.OUTPUT  # one line: before anything was drawn
    error_line(capsys, "lrpca: path=", *words)
    assert names() == before and Path("old.json").read_text() == Path("old.png").read_text() == "mine"


def test_force_replaces(capsys: Capsys) -> None:
    for name in ("m.json", "m.png"):
        Path(name).write_text("old")
    assert train(*MADE, *BRIEF, "-o", "m.json", "--plot", "m.png", "--force", "-q") == ExitCode.DONE
    assert lrpca.Schedule.load("m.json").layers == 3 and Path("m.png").read_bytes().startswith(b"\x89PNG")


def test_divergence_writes_no_model(monkeypatch: Patch, capsys: Capsys) -> None:
    from lrpca.learn.fast import FastTrainer

    taken = FastTrainer.step

    def step(trainer: FastTrainer) -> float:
        loss = taken(trainer)
        return loss if trainer.position < 4 else float("nan")

    monkeypatch.setattr(FastTrainer, "step", step)
    assert train(*MADE, *BRIEF, "-o", "m.json", "-q") == ExitCode.NOT_CONVERGED
    error_line(capsys, "training diverged in step 4", "--force to start again")
    assert names() == ["m.checkpoint.json"]


def test_without_pytorch_says_what_to_install(folder: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from lrpca.cli import main; "
        "print(main(['train', '-o', 'm.json']), main(['train', '--help']), main(['models']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-3:] == ["2", "0", "0"] and done.stderr.count("\n") == 1
    assert done.stderr.startswith("lrpca: ") and "pip install" in done.stderr and "lrpca[learn]" in done.stderr
    assert "default" in done.stdout and names() == []


def test_without_matplotlib_says_so_before_training(monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert train(*MADE, *BRIEF, "-o", "m.json", "--plot", "m.png") == ExitCode.USAGE
    err = capsys.readouterr().err
    assert err == "lrpca: plots need matplotlib, which is not installed; pip install lrpca[plot]\n" and names() == []


def test_a_disk_that_fills_up(capsys: Capsys) -> None:
    assert train(*MADE, *BRIEF, "-o", "first.json", "-q") == ExitCode.DONE  # nothing is compiled under the limit
    with full_disk(500):
        assert train(*MADE, *BRIEF, "-o", "m.json", "-q") == ExitCode.OUTPUT
    error_line(capsys, "checkpoint='m.checkpoint.json' cannot be written (")
    assert names() == ["first.json"]


# --- interrupts and going on --------------------------------------------------------------------------------


def interrupt_at(step: int, number: int, monkeypatch: Patch) -> None:
    """Have a signal arrive when a step is shown."""
    usual = cli_train._follow

    def follow(show: Any) -> Callable[[Any], None]:
        told = usual(show)

        def tell(progress: Any) -> None:
            told(progress)
            if progress.step == step:
                signal.raise_signal(number)

        return tell

    monkeypatch.setattr(cli_train, "_follow", follow)


@pytest.mark.parametrize("settings", [(), ("--form", "paper", "--way", "paper")])
def test_resumed_is_uninterrupted(settings: tuple[str, ...], monkeypatch: Patch, capsys: Capsys) -> None:
    command = (*MADE, "--layers", "2", "--steps", "12", *settings, "-o", "m.json")
    assert train(*command, "-q") == ExitCode.DONE
    whole = lrpca.Schedule.load("m.json")
    with monkeypatch.context() as patch:
        interrupt_at(5, signal.SIGTERM, patch)
        assert train(*command, "--force") == ExitCode.TERMINATED
    out, err = capsys.readouterr()
    hint = f"resume with: lrpca train {shlex.join(command)} --force --resume\n"
    assert out == "" and err.endswith(hint) and names() == ["m.checkpoint.json", "m.json"]
    assert numbers("m.json") == (whole.thresholds, whole.steps, whole.tail)  # the old one
    os.remove("m.json")
    assert train(*command, "--resume") == ExitCode.DONE
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("step  6 of 12")
    again = lrpca.Schedule.load("m.json")
    assert again == whole and again.meta["scores"] == whole.meta["scores"]
    assert again.meta["command"] == f"lrpca train {shlex.join(command)}" and names() == ["m.json"]


def test_ctrl_c_in_the_middle(folder: Path) -> None:
    command = ["train", *MADE, "--steps", "100000", "-o", "m.json"]
    process = start(*command, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("step      0 of 100000")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED and out == "" and "Traceback" not in err
    assert err.endswith(f"resume with: lrpca {shlex.join(command)} --resume\n") and names() == ["m.checkpoint.json"]


def test_ctrl_c_before_the_first_checkpoint(monkeypatch: Patch, capsys: Capsys) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lrpca.learn, "train", interrupted)
    assert train(*MADE, "-o", "m.json", "-q") == ExitCode.INTERRUPTED and names() == []
    err = capsys.readouterr().err
    assert err == "lrpca: interrupted, nothing half-written is left; no checkpoint was written yet\n"


def test_an_old_checkpoint_is_neither_lost_nor_mixed_up(monkeypatch: Patch, capsys: Capsys) -> None:
    command = (*MADE, *BRIEF, "-o", "m.json", "-q")
    with monkeypatch.context() as patch:
        interrupt_at(3, signal.SIGINT, patch)
        assert train(*command[:-1]) == ExitCode.INTERRUPTED
    state = Path("m.checkpoint.json").read_bytes()
    capsys.readouterr()
    assert train(*command) == ExitCode.OUTPUT
    assert "--resume" in capsys.readouterr().err
    assert train(*command, "--resume", "--seed", "4") == ExitCode.INPUT
    error_line(capsys, "seed", "m.checkpoint.json")
    assert names() == ["m.checkpoint.json"] and Path("m.checkpoint.json").read_bytes() == state
    Path("m.checkpoint.json").write_bytes(state[: len(state) // 2])
    assert train(*command, "--resume") == ExitCode.INPUT
    assert "m.checkpoint.json" in capsys.readouterr().err
    Path("m.checkpoint.json").write_bytes(state)
    assert train(*command, "--force", "--seed", "4") == ExitCode.DONE and names() == ["m.json"]
