"""The backend "ray" of joblib, with which scikit-learn and others work in actors."""

from __future__ import annotations

from dray.checks import require
from dray.compat.attributes import attach_getattr

__all__ = ["register_ray"]

attach_getattr(__name__)


def register_ray() -> None:
    """Give joblib the backend "ray", which runs parallel calls in a pool of actors.

    It is chosen by `joblib.parallel_config(backend="ray")`, which also takes
    `ray_remote_args=`, options of the actors. Without `n_jobs=` or with -1 there is an actor for
    each CPU.

    Raises:
        MissingDependencyError: joblib is not installed.

    Example:
        >>> import joblib
        >>> from dray.util.joblib import register_ray
        >>> register_ray()
        >>> with joblib.parallel_config(backend="ray", n_jobs=2):
        ...     joblib.Parallel()(joblib.delayed(abs)(x) for x in (-1, 2))
        [1, 2]
    """
    require("joblib", "joblib")
    from joblib.parallel import register_parallel_backend

    from dray.util.joblib_backend import RayBackend

    register_parallel_backend("ray", RayBackend)
