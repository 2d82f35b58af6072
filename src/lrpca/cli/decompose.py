"""The command ``lrpca decompose``: split a matrix of any size into its low-rank part and its outliers."""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from lrpca.cli.console import exit_with, live_rows, print_pairs
from lrpca.cli.exit_codes import ExitCode
from lrpca.core.devices import bytes_in_words
from lrpca.core.extras import require
from lrpca.matrices.chunked.progress import Reading

if TYPE_CHECKING:
    from lrpca.decomposition.result import Decomposition
    from lrpca.solvers.base import State

_INPUTS = (
    "The matrix: .npy .npz .csv .tsv .txt .mat .parquet .h5 or zarr. Several .npy, .h5 or zarr files are stacked "
    "vertically. NaN means missing."
)
_OUTPUTS = "Where to write: OUT.npz, OUT.mat, OUT.zarr, or a folder OUT of .npy files."
_RANK = "Rank of the low-rank part. auto: all components that exceed the noise. 0.9: those that explain 90%."
_METHOD = "Solver and its options, e.g. accaltproj:gamma=0.5. For large data: sampled or auto."
_TOL = "Tolerance: relative change of X, or relative residual, by method."
_COMPILING = "solving (the first run compiles the library, which takes a while)"
_SCHEDULES = "A shipped schedule, a .json schedule or a published .mat model."
_SPARSE = "Also write the outliers S: as a full matrix, or in OUT.zarr as coordinates."
_LAYOUT = "Layout of S in OUT.zarr: coordinates (default), or dense for a full matrix."
_KEY = "Name of the array, if the file or store holds several."
_HEADER = "Whether the first line of a text FILE holds column names; detected by default."
_SCHEDULER = "Address of a dask cluster to run on, e.g. tcp://10.0.0.1:8786."
_CHECKPOINT = "File to save the run in; the same command resumes from it (method lrpca only)."
# Seconds until a scheduler must answer.
_PATIENCE = 10


def decompose(
    file: Annotated[list[Path], Argument(metavar="FILE...", help=_INPUTS)],
    output: Annotated[Path, Option("--output", "-o", metavar="OUT", help=_OUTPUTS)],
    rank: Annotated[str, Option("--rank", "-r", metavar="N", help=_RANK)] = "auto",
    method: Annotated[str, Option("--method", "-m", metavar="NAME", help=_METHOD)] = "lrpca",
    sparse: Annotated[bool, Option("--sparse", help=_SPARSE)] = False,
    low_rank: Annotated[bool, Option("--low-rank", help="Also write L Rᵀ, as a full matrix.")] = False,
    layout: Annotated[str | None, Option(metavar="WORD", help=_LAYOUT)] = None,
    key: Annotated[str | None, Option(metavar="NAME", help=_KEY)] = None,
    header: Annotated[bool | None, Option("--header/--no-header", help=_HEADER)] = None,
    schedule: Annotated[str | None, Option(metavar="NAME", help=_SCHEDULES)] = None,
    tol: Annotated[float | None, Option(min=0.0, metavar="X", help=_TOL)] = None,
    max_iter: Annotated[int | None, Option(min=1, metavar="N", help="Maximum number of iterations.")] = None,
    seed: Annotated[int, Option(min=0, metavar="N", help="Random seed.")] = 0,
    scheduler: Annotated[str | None, Option(metavar="ADDRESS", help=_SCHEDULER)] = None,
    checkpoint: Annotated[Path | None, Option(metavar="PATH", help=_CHECKPOINT)] = None,
    force: Annotated[bool, Option("--force", "-f", help="Replace an existing result.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only warnings and errors.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Split the matrix in FILE into a low-rank part L Rᵀ and sparse outliers S."""
    from lrpca.cli.memory_limit import WORK, require_memory
    from lrpca.cli.models import load_schedule
    from lrpca.decompose import check_settings
    from lrpca.decomposition import writing

    with exit_with(ExitCode.OUTPUT):
        writing.check_writable(output, overwrite=force, sources=file)
    # An OSError is about the checkpoint.
    with exit_with(ExitCode.OUTPUT, OSError), exit_with(ExitCode.USAGE, ValueError, NotImplementedError):
        stored = _checked_layout(layout, output, sparse)
        asked: dict[str, Any] = {"rank": _read_rank(rank), "tol": tol, "max_iter": max_iter}
        asked |= {"random_state": seed} | _checked_method(method, checkpoint)
    with exit_with(ExitCode.INPUT):
        asked["schedule"] = None if schedule is None else load_schedule(schedule)
    with exit_with(ExitCode.USAGE, ValueError):
        check_settings(**{name: value for name, value in asked.items() if name != "options"})
    with _connected(scheduler):
        reads = _Reads()
        with exit_with(ExitCode.INPUT):
            Y = reads.open(file, key, header, by_blocks=scheduler is not None)
            require_memory(WORK, "to work with beside Y")
        with exit_with(ExitCode.OUTPUT):
            compressed = output.suffix.lower() == ".zarr"
            writing.check_disk_space(output, reads, low_rank + (sparse and not compressed))
        began = time.perf_counter()
        with exit_with(ExitCode.INPUT), _resumable(checkpoint):
            d = _solve(Y, asked, reads, quiet)
        total = {"total_seconds": time.perf_counter() - began} | reads.summary()
        with exit_with(ExitCode.OUTPUT), live_rows(quiet, "writing", "writing") as show:
            written = writing.write_result(
                d,
                output,
                sparse=sparse,
                low_rank=low_rank,
                layout=stored,
                tell=lambda part, reading: show.say(_progress(f"writing {part}", reading)),
            )
    summary: dict[str, Any] = {"input": [str(name) for name in file] if len(file) > 1 else str(file[0])}
    summary |= {"shape": reads.shape, "dtype": str(reads.dtype)}
    if reads.names is not None:
        summary["names"] = reads.names
    summary |= writing.summarize(d) | total
    if d.rank_choice is not None:
        # Infinite if there is no noise at all, not even rounding.
        summary["rank_gap"] = min(d.rank_choice.gap, sys.float_info.max)
    _report(summary | {"output": [str(name) for name in written]}, quiet, as_json)
    raise typer.Exit(ExitCode.DONE if d.converged else ExitCode.NOT_CONVERGED)


def _solve(Y: Any, asked: dict[str, Any], reads: "_Reads", quiet: bool) -> "Decomposition":
    """Return the decomposition; show the iterations and the progress of reading meanwhile."""
    import lrpca

    with live_rows(quiet, "solving", _COMPILING) as show:
        reads.say = show.say
        # Without a callback the solver copies no factors.
        d = lrpca.decompose(Y, **asked, callback=None if quiet else lambda state: show.row(_cells(state)))
    reads.say = lambda text: None
    return d


class _Reads:
    """Opens the matrix, and reports the progress of reading it."""

    def __init__(self) -> None:
        self.say: Callable[[str], None] = lambda text: None
        self.shape: tuple[int, ...] = (0, 0)
        self.dtype: Any = None
        self.names: str | None = None
        self._blocks = self._passes = self._round = 0
        self._last: Reading | None = None

    def open(self, paths: list[Path], key: str | None, header: bool | None, *, by_blocks: bool) -> Any:
        """Return an array, or a matrix that is read in blocks."""
        from lrpca.files import read_matrix
        from lrpca.files.formats import READERS, ending
        from lrpca.matrices.chunked.large import accept_large

        if len(paths) == 1 and not by_blocks and not paths[0].is_dir() and ending(paths[0]) in READERS:
            array = read_matrix(paths[0], key=key, header=header, tell=partial(setattr, self, "names"))
            self.shape, self.dtype = array.shape, array.dtype
            return array
        if header is not None:
            raise ValueError(f"header={header} has no meaning for data read in blocks; leave it out")
        matrix: Any = accept_large(paths if len(paths) > 1 else paths[0], key=key, tell=self)
        self.shape, self.dtype = matrix.shape, matrix.stored
        if hasattr(matrix, "source"):
            self._blocks = len(matrix.source.grid)
        return matrix

    def __call__(self, reading: Reading) -> None:
        """Record a block that was read."""
        whole = reading.blocks == self._blocks
        self._passes += whole and reading.round != self._round
        self._round, self._last = reading.round, reading
        self.say(_progress(f"pass {self._passes}" if whole else "reading single entries", reading))

    def summary(self) -> dict[str, Any]:
        """Return the bytes read and the speed; nothing if Y was not read in blocks."""
        if self._last is None:
            return {}
        return {"bytes_read": self._last.bytes, "bytes_per_second": self._last.bytes_per_second}


def _progress(doing: str, reading: Reading) -> str:
    """Return the progress of reading or writing as text."""
    return f"{doing}: {reading.done} of {reading.blocks} blocks, {bytes_in_words(reading.bytes_per_second)}/s"


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Use the cluster at an address, if one is given, while the block runs."""
    if address is None:
        yield
        return
    with exit_with(ExitCode.INPUT):
        distributed = require("distributed", "dask", f"scheduler={address!r} needs dask.distributed")
        try:
            # Otherwise a client without a scheduler would stay the default of this process.
            client = distributed.Client(address, timeout=_PATIENCE, set_as_default=False)
        except Exception as error:  # every kind of address fails in its own way
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ConnectionError(
                f"scheduler={address!r} does not answer ({lines[0]}); check the address and that `dask scheduler` runs"
            ) from error
    try:
        with client.as_current():
            yield
    finally:
        # A lost cluster cannot be closed properly, and was reported already.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        with suppress(Exception):
            client.close()


@contextmanager
def _resumable(checkpoint: Path | None) -> Iterator[None]:
    """Say how to resume an interrupted run, and distinguish faults of the input from others."""
    try:
        yield
    except ValueError as error:
        # Some options are refused in combination with others, or with the rank that was found.
        with exit_with(ExitCode.USAGE if str(error).startswith("options[") else ExitCode.INPUT):
            raise
    except OSError as error:
        with exit_with(ExitCode.OUTPUT if str(error).startswith("checkpoint=") else ExitCode.INPUT):
            raise
    except KeyboardInterrupt as interrupt:
        if checkpoint is not None and checkpoint.exists():
            interrupt.add_note(
                f"checkpoint={str(checkpoint)!r} holds the run so far; run the same command again to resume"
            )
        raise


def _checked_layout(layout: str | None, output: Path, sparse: bool) -> str:
    """Return how S is written to a zarr store."""
    from lrpca.decomposition.zarr import LAYOUTS

    if layout is None:
        return LAYOUTS[0]
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} is unknown; use one of {', '.join(LAYOUTS)}")
    if not sparse or output.suffix.lower() != ".zarr":
        raise ValueError(f"layout={layout!r} applies to S in OUT.zarr; add --sparse and -o OUT.zarr, or leave it out")
    return layout


def _read_rank(text: str) -> int | float | str:
    """Return a rank, a share of the variance, or "auto"."""
    if text == "auto":
        return text
    with suppress(ValueError):
        if text.isdecimal() and int(text) >= 1:
            return int(text)
        if 0 < float(text) < 1:
            return float(text)
    raise ValueError(f"rank={text!r} is not a rank; give a positive integer, auto, or a share below 1, e.g. 0.9")


def _checked_method(text: str, checkpoint: Path | None) -> dict[str, Any]:
    """Return the name and options of a method, checked before anything is read."""
    from lrpca.solvers.methods import find_method
    from lrpca.solvers.options import check_options, read_method

    name, options = read_method(text, "method")
    known = find_method(name).options
    if checkpoint is not None:
        if "checkpoint" not in known:
            raise ValueError(
                f"checkpoint={str(checkpoint)!r} is not used by method={name!r}; leave --checkpoint out, or use lrpca"
            )
        options = options | {"checkpoint": str(checkpoint)}
    check_options(options, known, name)
    return {"method": name, "options": options}


def _cells(state: "State") -> dict[str, str]:
    """Return the numbers of an iteration as text."""
    return {
        "iteration": f"{state.iteration:>3}",
        "threshold": _text(state.threshold, ".2e"),
        "change": _text(state.change, ".1e"),
        "kept": _text(state.kept, ".1%"),
        "seconds": _text(state.seconds, ".3f"),
    }


def _text(value: float | None, form: str) -> str:
    """Return a number as text, a dash if it is unknown."""
    return "-" if value is None else format(value, form)


def _report(summary: dict[str, Any], quiet: bool, as_json: bool) -> None:
    """Print the summary on stdout, and on stderr why the iteration stopped if it did not converge."""
    if as_json:
        typer.echo(json.dumps(summary, allow_nan=False))
    elif not quiet:
        print_pairs(_rows(summary))
    if not summary["converged"]:
        typer.echo(f"lrpca: not converged ({summary['reason']}); the result is written", err=True)


def _rows(summary: dict[str, Any]) -> dict[str, str]:
    """Return the summary as names and values."""
    threshold, name = summary["outlier_threshold"], summary["input"]
    if isinstance(name, list):
        name = f"{name[0]} and {len(name) - 1} more"
    names = f"; {summary['names']}" if "names" in summary else ""
    found = ""
    if (gap := summary.get("rank_gap")) is not None:
        times = f"{gap:.2g}" if gap < 1000 else "over 1000"
        found = f", found (the weakest component is {times} times the next value)"
    total, iterating = summary["total_seconds"], summary["seconds"]
    # After a checkpoint, earlier iterations do not count as time of this run.
    if iterating > total:
        took = f"{total:.2f} s since the checkpoint, {iterating:.2f} s in all iterations"
    else:
        took = f"{total:.2f} s, {iterating:.2f} s of it in the iterations"
    rows = {
        "input": f"{name} ({' x '.join(map(str, summary['shape']))}, {summary['dtype']}{names})",
        "method": f"{summary['method']}, rank {summary['rank']}{found}",
        "iterations": f"{summary['n_iter']}, {summary['n_reads']:.3g} passes over the data",
        "converged": f"{'yes' if summary['converged'] else 'no'} ({summary['reason']})",
        "noise level": _text(summary["noise_level"], ".3g"),
        "outliers": f"{_text(summary['outlier_fraction'], '.2%')} of the entries, "
        f"beyond {'varying thresholds' if isinstance(threshold, list) else _text(threshold, '.3g')}",
        "time": took,
    }
    if "bytes_read" in summary:
        rows["read"] = (
            f"{bytes_in_words(summary['bytes_read'])} in blocks, {bytes_in_words(summary['bytes_per_second'])}/s"
        )
    return rows | {"written": "\n".join(summary["output"])}
