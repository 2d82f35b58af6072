"""A dask.distributed cluster at work: what it keeps, how far it has come, and what happens when it goes away."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lrpca.matrices.chunked.progress import Meter

# Times a block is tried again where its own code failed (a network drive that stumbled).
_RETRIES = 2
# Seconds between two checks of the futures.
_BEAT = 0.25
# Seconds without any worker, or without an answer of the scheduler, after which a cluster is taken to be gone.
PATIENCE = 60.0
# Part of the workers' memory that Y may fill, and still be kept there from pass to pass.
_KEPT_PART = 0.5
# Bytes of a graph that dask warns of; ours hold the factors, which are large by right.
_LARGE_GRAPH = "1 GB"


def active_client() -> Any:
    """Return the dask.distributed client in whose name work is done, or None; imports nothing."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    import dask

    chosen = dask.config.get("scheduler", None)
    # dask takes a client itself as well, or the method of it that computes.
    chosen = getattr(chosen, "__self__", chosen)
    if isinstance(chosen, distributed.Client):
        return _usable(chosen)
    if chosen not in (None, "dask.distributed", "distributed"):
        return None
    try:
        return _usable(distributed.Client.current())
    except ValueError:
        return None


def _usable(client: Any) -> Any:
    # One that never found its scheduler stays the current one for a while.
    if client.status != "running":
        return None
    if client.asynchronous:
        raise TypeError(
            f"client={client!r} is asynchronous, and cannot be waited for; call from a thread, e.g. await "
            "asyncio.to_thread(lrpca.decompose, Y, rank)"
        )
    return client


class Cluster:
    """A dask.distributed client, with what matrices need of it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._address = str(getattr(client.scheduler, "address", "unknown"))
        self.as_given: tuple[Any, Any] = (None, None)
        self._kept: list[Any] = []
        self._last_seen = time.monotonic()

    @property
    def threads(self) -> int:
        """Threads of all workers, at least one."""
        return max(1, sum(int(worker["nthreads"]) for worker in self._workers().values()))

    def keep(self, array: Any, mask: Any) -> tuple[Any, Any]:
        """Return Y and the mask, kept in the workers' memory where they fit."""
        from distributed import futures_of

        memory = sum(worker.get("memory_limit") or 0 for worker in self._workers().values())
        size = array.nbytes + (0 if mask is None else mask.nbytes)
        self.as_given = array, mask
        if size <= _KEPT_PART * memory:
            with _large_graphs():
                array = self.client.persist(array, retries=_RETRIES)
                mask = None if mask is None else self.client.persist(mask, retries=_RETRIES)
            self._kept = futures_of([array, mask])
        return array, mask

    def let_go(self) -> tuple[Any, Any]:
        """Return Y and the mask as they were given, and let the workers forget them."""
        # Not left to the last reference: a failed task's traceback, which the client holds, has some.
        _release(self._kept)
        self._kept = []
        return self.as_given

    def compute(self, blocks: list[Any], root: Any, sizes: list[int], meter: Meter) -> Any:
        """Return the value of `root`; report finished `blocks`, of sizes in bytes, to the meter.

        Raises ConnectionError where the cluster goes away, and what a block raised where that failed.
        """
        from distributed.scheduler import KilledWorker

        with _large_graphs():
            *futures, answer = self.client.compute([*blocks, root], retries=_RETRIES)
        waiting = dict(zip(futures, sizes, strict=True))
        self._last_seen = time.monotonic()
        try:
            with _thread_lent():
                while not answer.done():
                    self._wait(answer)
                    self._tell(waiting, meter)
                    self._check_presence()
            # A cancelled future counts as done.
            if answer.cancelled():
                raise self._gone()
            result = answer.result(timeout=PATIENCE)
            self._tell(waiting, meter)
        except KilledWorker as error:
            raise MemoryError(
                f"a block killed every worker that tried it ({error}); give workers more memory, or cut Y into smaller "
                "chunks, e.g. Y.rechunk('64 MiB')"
            ) from error
        except ConnectionError:
            raise
        except Exception as error:
            self.check(error)
            raise
        finally:
            _release([*futures, answer])
        return result

    def _wait(self, answer: Any) -> None:
        from distributed import wait

        try:
            wait([answer], timeout=_BEAT)
        except TimeoutError:
            pass
        except Exception as error:
            self.check(error)
            raise

    def check(self, error: Exception) -> None:
        """Raise ConnectionError from an error if the cluster is not there any more."""
        if not self._is_there():
            raise self._gone() from error

    def _tell(self, waiting: dict[Any, int], meter: Meter) -> None:
        for future in [future for future in waiting if future.status == "finished"]:
            meter.advance(waiting.pop(future))

    def _workers(self) -> dict[str, Any]:
        # Not scheduler_info(), which waits for ever where the scheduler hangs or its network is cut.
        try:
            ask = self.client.scheduler.identity
            found: dict[str, Any] = self.client.sync(ask, n_workers=-1, callback_timeout=PATIENCE)["workers"]
        except (OSError, TimeoutError) as error:
            raise self._gone() from error
        return found

    def _is_there(self) -> bool:
        return bool(self.client.status == "running")

    def _check_presence(self) -> None:
        """Raise ConnectionError where no worker has been there for too long."""
        try:
            if self._is_there() and self._workers():
                self._last_seen = time.monotonic()
        except Exception:  # asking a scheduler that is going away fails in many ways
            pass
        if not self._is_there() and self.client.status == "closed":
            raise self._gone()
        if time.monotonic() - self._last_seen > PATIENCE:
            raise self._gone()

    def _gone(self) -> ConnectionError:
        return ConnectionError(
            f"scheduler={self._address!r} went away, or has no workers left; start a cluster and call again (with "
            "options={'checkpoint': PATH} or --checkpoint PATH a run goes on from its last iteration)"
        )


def _release(futures: list[Any]) -> None:
    for future in futures:
        future.release()


@contextmanager
def _thread_lent() -> Iterator[None]:
    """Lend the thread to the worker's other tasks while waiting, where the caller is a task of a worker itself."""
    from distributed import rejoin, secede
    from distributed.worker import thread_state

    if not getattr(thread_state, "key", False):
        yield
        return
    secede()
    try:
        yield
    finally:
        rejoin()


def _large_graphs() -> Any:
    """Return a context in which dask does not warn of graphs that hold many numbers: factors belong there."""
    import dask

    return dask.config.set({"distributed.admin.large-graph-warning-threshold": _LARGE_GRAPH})
