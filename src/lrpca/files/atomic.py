"""Writing files so that a reader sees the old content or the new, never a part of it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Hand out a temporary path beside ``path`` and rename it to ``path`` on success.

    The temporary name keeps the ending of ``path``, for writers that look at it or add their own. If the
    block raises (an interrupt included), what was written is removed and ``path`` stays as it was. A symbolic
    link is followed: the file it points to is replaced. The block may also make a directory under the
    temporary name; then nothing may exist at ``path``.

    Parameters
    ----------
    path : str or path-like
        Where the finished file belongs. Its folder must exist.

    Yields
    ------
    pathlib.Path
        A path in the same folder at which nothing exists yet.

    Raises
    ------
    FileNotFoundError
        The folder of ``path`` does not exist.
    FileExistsError
        ``path`` is a device, a pipe or a socket, which a rename would destroy.
    IsADirectoryError
        ``path`` is a folder, and the block wrote a file.
    OSError
        The system refused; the error names ``path``.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from lrpca.files.atomic import replacing
    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "note.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> [file.name for file in folder.iterdir()], (folder / "note.txt").read_text()
    (['note.txt'], 'whole')
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"path={os.fspath(path)!r} is in a folder that does not exist; make {str(target.parent)!r} first"
        )
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise FileExistsError(f"path={os.fspath(path)!r} is neither a file nor a folder; choose another name")
    # Not tempfile.mkstemp: its files are private to the owner, and the rename would keep that.
    temporary = target.with_name(f".{target.stem[:40]}.{secrets.token_hex(6)}{target.suffix}")
    try:
        yield temporary
        if target.is_dir() and not temporary.is_dir():
            raise IsADirectoryError(f"path={os.fspath(path)!r} is a folder; name a file, e.g. one in it")
        os.replace(temporary, target)
    except BaseException as error:
        remove(temporary)
        if isinstance(error, OSError) and error.strerror:  # of the system, and about the temporary name at best
            raise cannot_write(path, error) from error
        raise


@contextmanager
def replacing_files(folder: str | os.PathLike[str], old: Iterable[str] = (), *, last: str = "") -> Iterator[Path]:
    """Hand out a new folder, and move its files into ``folder`` on success: all of them or none.

    If the block raises (an interrupt included), what was written is removed and ``folder`` stays as it was.

    Parameters
    ----------
    folder : str or path-like
        Where the finished files belong. It is made if need be; the folder above it must exist.
    old, last
        As for `exchange`.

    Yields
    ------
    pathlib.Path
        An empty folder on the same file system.
    """
    target = Path(folder)
    if not target.exists():
        with replacing(target) as staging:
            staging.mkdir()
            yield staging
        return
    staging = hidden_in(target)
    try:
        staging.mkdir()
        yield staging
        exchange(staging, target, old, last=last)
    except OSError as error:
        if not error.strerror:
            raise
        raise cannot_write(target, error) from error
    finally:
        remove(staging)


def exchange(staging: Path, folder: Path, old: Iterable[str] = (), *, last: str = "") -> None:
    """Move all files of one folder into another; where that fails, both are as they were.

    Parameters
    ----------
    staging : pathlib.Path
        The folder of the new files, which may lie in folders of their own.
    folder : pathlib.Path
        Where they belong; on the same file system. Files of the same names are removed.
    old : iterable of str
        Names of more files of ``folder`` that are to be removed.
    last : str
        Name of the file that goes first and comes last: where it is, the files belong together, even after a crash.
    """

    def order(name: Path) -> tuple[bool, Path]:
        return name == Path(last), name

    new = sorted((path.relative_to(staging) for path in staging.rglob("*") if path.is_file()), key=order)
    gone = sorted((name for name in {*new, *map(Path, old)} if _is_file(folder / name)), key=order, reverse=True)
    aside = hidden_in(folder)
    moves = [(folder / name, aside / name) for name in gone] + [(staging / name, folder / name) for name in new]
    try:
        for source, destination in moves:
            destination.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, destination)
    except BaseException:
        for source, destination in reversed(moves):
            if not os.path.lexists(source):
                os.replace(destination, source)
        remove(aside)
        raise
    remove(aside)


def _is_file(path: Path) -> bool:
    """Tell whether something other than a folder is at ``path``; a link to a folder is something else."""
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir())


def hidden_in(folder: Path) -> Path:
    """Return a path in a folder at which nothing exists yet.

    Parameters
    ----------
    folder : pathlib.Path
    """
    return folder / f".{secrets.token_hex(6)}"


def cannot_write(path: str | os.PathLike[str], error: OSError) -> OSError:
    """Return an error of the system in our form and of the same kind.

    Parameters
    ----------
    path : str or path-like
        What the user wanted to write.
    error : OSError
        What the system said.

    Returns
    -------
    OSError
        Its ``strerror`` is what the system said.
    """
    kind = type(error) if type(error).__module__ == "builtins" else OSError
    cause = error.strerror or str(error) or type(error).__name__
    told = kind(f"path={os.fspath(path)!r} cannot be written ({cause}); choose another place or make room")
    told.strerror = cause
    return told


def remove(path: Path) -> None:
    """Remove the file or the directory at ``path``, if there is one.

    Parameters
    ----------
    path : pathlib.Path
        What to remove; a symbolic link is removed itself, not what it points to.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def check_folder(folder: str | os.PathLike[str], names: Iterable[str] = (), *, overwrite: bool = True) -> None:
    """Check, before a long computation, that files can be written into a folder that exists or is yet to be made.

    Parameters
    ----------
    folder : str or path-like
        Where the files are to go; it and the folders above it need not exist yet, and are not made here.
    names : iterable of str
        Names of the files.
    overwrite : bool
        Whether files of these names may be replaced.

    Raises
    ------
    OSError
        The folder cannot be made or takes no new file, or something is in the way.
    """
    target = Path(folder)
    there = next((path for path in (target, *target.parents) if os.path.lexists(path)), target)
    if not there.is_dir():
        raise NotADirectoryError(f"path={str(target)!r} needs {str(there)!r} to be a folder; choose another name")
    for path in (target / name for name in names):
        if path.is_dir():
            raise IsADirectoryError(f"path={str(path)!r} is a folder where a file belongs; choose another place")
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(
                f"path={str(path)!r} exists; choose another folder or overwrite it (overwrite=True, --force)"
            )
    # Permissions alone do not tell: the file system may be read-only, or the user may be root.
    probe = hidden_in(there)
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(target, error) from error


def check_file(path: str | os.PathLike[str], ending: str, *, overwrite: bool) -> None:
    """Check, before a long computation, that a file can be written, in a folder that exists or is yet to be made.

    Parameters
    ----------
    path : str or path-like
    ending : str
        How the name has to end, with its dot.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    ValueError
        The name ends otherwise.
    OSError
        The file exists, something else is in the way, or the folder cannot be made or takes no new file.
    """
    target = Path(path)
    _refuse_ending(target, ending)
    real = Path(os.path.realpath(target))
    if real.exists() and not real.is_file():
        raise FileExistsError(f"path={str(target)!r} is in the way of the file; choose another name")
    if os.path.lexists(target) and not overwrite:
        raise FileExistsError(f"path={str(target)!r} exists; choose another name or overwrite it (--force)")
    check_folder(real.parent if target.is_symlink() else target.parent)


def with_ending(path: str | os.PathLike[str], ending: str) -> Path:
    """Return the path of a file that is to be saved: with its ending, which is added where there is none.

    Parameters
    ----------
    path : str or path-like
    ending : str
        How the name has to end, with its dot.

    Returns
    -------
    pathlib.Path
        What exists without an ending and is no file is returned as it is, for `replacing` to refuse.

    Raises
    ------
    ValueError
        The name ends otherwise.

    Examples
    --------
    >>> from lrpca.files.atomic import with_ending
    >>> with_ending("result", ".npz").name, with_ending("result.NPZ", ".npz").name
    ('result.npz', 'result.NPZ')
    """
    target = Path(path)
    if target.suffix:
        _refuse_ending(target, ending)
    elif target.is_file() or not target.exists():
        target = target.with_name(target.name + ending)
    return target


def found_with(path: str | os.PathLike[str], ending: str) -> Path:
    """Return where `with_ending` had a file saved under this name; the path itself where there is none."""
    target = Path(path)
    named = target if target.suffix else with_ending(target, ending)
    return named if named.exists() else target


def _refuse_ending(target: Path, ending: str) -> None:
    if target.suffix.lower() != ending:
        raise ValueError(f"path={str(target)!r} does not end in {ending}; name it {target.stem or 'file'}{ending}")
