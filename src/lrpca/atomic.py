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

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from lrpca.atomic import replacing
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
    except BaseException:
        remove(temporary)
        raise


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
            raise FileExistsError(f"path={str(path)!r} exists; choose another folder or overwrite it (--force)")
    # Permissions alone do not tell: the file system may be read-only, or the user may be root.
    probe = there / f".{secrets.token_hex(6)}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(
            f"path={str(target)!r} cannot be written ({error.strerror}); choose another place or make room"
        ) from error


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
    if target.suffix.lower() != ending:
        raise ValueError(f"path={str(target)!r} does not end in {ending}; name it {target.stem or 'file'}{ending}")
    real = Path(os.path.realpath(target))
    if real.exists() and not real.is_file():
        raise FileExistsError(f"path={str(target)!r} is in the way of the file; choose another name")
    if os.path.lexists(target) and not overwrite:
        raise FileExistsError(f"path={str(target)!r} exists; choose another name or overwrite it (--force)")
    check_folder(real.parent if target.is_symlink() else target.parent)
