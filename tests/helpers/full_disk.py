"""A disk without room, as a program sees it."""

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def full_disk(n_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a few bytes, which a program sees as it sees a full disk."""
    resource = pytest.importorskip("resource", reason="limits the size of files, on Unix")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
