"""The backend of joblib that `dray.util.joblib` registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joblib.parallel import FallbackToBackend, MultiprocessingBackend, SequentialBackend

from dray import session
from dray.checks import plain
from dray.errors import ConfigError
from dray.util.multiprocessing import Pool


class RayBackend(MultiprocessingBackend):  # type: ignore[misc] # of no known type
    """Joblib's backend of processes, with actors in their place."""

    default_n_jobs = -1

    def __init__(self, ray_remote_args: Mapping[str, object] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._ray_remote_args = ray_remote_args

    def configure(
        self,
        n_jobs: int = 1,
        parallel: object = None,
        prefer: object = None,
        require: object = None,
        ray_remote_args: Mapping[str, object] | None = None,
        **options: object,
    ) -> int:
        """Make the pool of actors; return how many there are."""
        count = self.effective_n_jobs(n_jobs)
        if count == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        self._pool = Pool(count, ray_remote_args=ray_remote_args or self._ray_remote_args)
        return count

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
