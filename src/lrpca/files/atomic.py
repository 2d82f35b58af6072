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
    """Yield a temporary path beside ``path`` and rename it to ``path`` on success.

    The temporary name keeps the ending of ``path``. If the block raises (an interrupt included), what was written is
    removed and ``path`` stays as it was. A symbolic link is followed: the file it points to is replaced. The block may
    also make a directory under the temporary name; then nothing may exist at ``path``.

    Raises OSError, with ``path`` in its message, if the folder of ``path`` does not exist, if a rename would destroy a
    folder, a device, a pipe or a socket, or if the system refuses.

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
    """Yield a new folder, and move its files into ``folder``, which is made if need be, on success: all or none.

    If the block raises (an interrupt included), what was written is removed and ``folder`` stays as it was. For ``old``
    and ``last`` see `exchange`.
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
    """Move all files of ``staging``, also those in its folders, into ``folder``; if that fails, both are as they were.

    Files of the same names, and those named in ``old``, are removed from ``folder``. The file ``last`` is removed first
    and moved last: where it exists, the files belong together, even after a crash.
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
    """Tell whether something other than a folder is at ``path``, e.g. a link to a folder."""
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir())


def hidden_in(folder: Path) -> Path:
    """Return an unused path in a folder."""
    return folder / f".{secrets.token_hex(6)}"


def cannot_write(path: str | os.PathLike[str], error: OSError) -> OSError:
    """Return an error of the system as one of the same kind, in our form; its ``strerror`` is the system's text."""
    kind = type(error) if type(error).__module__ == "builtins" else OSError
    cause = error.strerror or str(error) or type(error).__name__
    told = kind(f"path={os.fspath(path)!r} cannot be written ({cause}); choose another place or free space")
    told.strerror = cause
    return told


def remove(path: Path) -> None:
    """Remove the file, the directory or the symbolic link at ``path``, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def check_folder(folder: str | os.PathLike[str], names: Iterable[str] = (), *, overwrite: bool = True) -> None:
    """Raise OSError, before a long computation, if files cannot be written into a folder.

    The folder and those above it need not exist yet, and are not made here. Files of these ``names`` may be in the
    folder only with ``overwrite``.
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
    check_new_files(there, target)


def check_new_files(folder: Path, path: Path) -> None:
    """Raise OSError, in the name of ``path``, if a folder takes no new file."""
    # Permissions alone do not tell: the file system may be read-only, or the user may be root.
    probe = hidden_in(folder)
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(path, error) from error


def check_file(path: str | os.PathLike[str], ending: str, *, overwrite: bool) -> None:
    """Raise OSError, before a long computation, if a file cannot be written, or ValueError for another ending.

    Its folder need not exist yet.
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
    """Return the path of a file to save: the ending is added if there is none; another one raises ValueError.

    If something without an ending exists there and is no file, its path is returned, for `replacing` to refuse.

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
    """Return the path under which a file of this name was saved by `with_ending`; the path itself if there is none."""
    target = Path(path)
    named = target if target.suffix else with_ending(target, ending)
    return named if named.exists() else target


def _refuse_ending(target: Path, ending: str) -> None:
    if target.suffix.lower() != ending:
        raise ValueError(f"path={str(target)!r} does not end in {ending}; name it {target.stem or 'file'}{ending}")
