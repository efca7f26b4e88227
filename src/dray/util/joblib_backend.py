"""The backend of joblib that `dray.util.joblib` registers."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from joblib.parallel import (
    BatchedCalls,
    FallbackToBackend,
    MultiprocessingBackend,
    SequentialBackend,
)

from dray import session
from dray.checks import plain
from dray.core.objects import get, put
from dray.engines.object_ref import ObjectRef
from dray.errors import ConfigError
from dray.util.multiprocessing import Pool


class RayBackend(MultiprocessingBackend):  # type: ignore[misc] # of no known type
    """Joblib's backend of processes, with actors in their place."""

    default_n_jobs = -1
    supports_return_generator = True

    def __init__(self, ray_remote_args: Mapping[str, object] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._ray_remote_args = ray_remote_args
        self._most_bytes: int | None = None
        self._stored: dict[int, _Stored] = {}  # by the id of the array

    def configure(
        self,
        n_jobs: int = 1,
        parallel: object = None,
        prefer: object = None,
        require: object = None,
        ray_remote_args: Mapping[str, object] | None = None,
        max_nbytes: int | None = None,
        **options: object,
    ) -> int:
        """Make the pool of actors; return how many there are."""
        count = self.effective_n_jobs(n_jobs)
        if count == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel, self._most_bytes = parallel, max_nbytes
        self._pool = Pool(count, ray_remote_args=ray_remote_args or self._ray_remote_args)
        return count

    def submit(self, func: Any, callback: Callable[..., object] | None = None) -> Any:
        """Have an actor run a batch of calls."""
        if isinstance(func, BatchedCalls):
            func = _LeanBatch(func, self._lean)
        return super().submit(func, callback)

    def _lean(self, value: Any) -> Any:
        """Return an argument, or what stands for an array that is stored once for all batches.

        Joblib's own processes share what is larger than `max_nbytes` in the same way.
        """
        size = getattr(value, "nbytes", 0)
        if self._most_bytes is None or not isinstance(size, int) or size <= self._most_bytes:
            return value
        if id(value) not in self._stored:
            try:
                weakref.finalize(value, self._stored.pop, id(value), None).atexit = False
            except TypeError:  # nobody would tell of its end
                return value
            self._stored[id(value)] = _Stored(put(value))
        return self._stored[id(value)]

    def stop_call(self) -> None:
        """Forget the arrays of a call of `Parallel`, which may change before the next one."""
        self._stored.clear()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many actors there will be; -1 is one for each CPU."""
        count = plain(1 if n_jobs is None else n_jobs)
        if count == 0:
            raise ConfigError("n_jobs=0 has no meaning")
        if count > 0:
            return int(count)
        if not session.is_initialized():
            session.init()
        return max(int(session.cluster_resources().get("CPU", 1)) + 1 + int(count), 1)


@dataclass(frozen=True)
class _Stored:
    """Stands for an argument that lies in the object store."""

    ref: ObjectRef


class _LeanBatch:
    """A batch of calls, with what stands for large arguments.

    Args:
        lean: Returns what stands for an argument.
    """

    def __init__(self, batch: Any, lean: Callable[[Any], Any]) -> None:
        self._batch = _with_arguments(batch, lean)

    def __call__(self) -> list[Any]:
        results: list[Any] = _with_arguments(self._batch, _load)()
        return results


def _with_arguments(batch: Any, change: Callable[[Any], Any]) -> Any:
    changed = copy.copy(batch)
    changed.items = [
        (function, [change(arg) for arg in args], {k: change(arg) for k, arg in kwargs.items()})
        for function, args, kwargs in batch.items
    ]
    return changed


def _load(value: Any) -> Any:
    return get(value.ref) if isinstance(value, _Stored) else value
