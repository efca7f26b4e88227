"""Datasets of Ray Data on the Ray engine, which splits them itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dray.engines.base import Engine
from dray.errors import ConfigError
from dray.train.backend import Backend, BackendConfig
from dray.train.data_config import DataConfig
from dray.train.run.worker_group import WorkerGroup
from dray.train.worker.current_session import current_session


def is_rays(value: object) -> bool:
    """Return whether a value is a dataset of Ray Data."""
    return type(value).__module__.startswith("ray.data.")


def check_engine(engine: Engine, name: str) -> None:
    """Raise ConfigError if an engine's workers cannot read a dataset of Ray Data."""
    if engine.name != "ray":
        raise ConfigError(
            f"datasets[{name!r}] is a dataset of Ray Data, and workers of the engine "
            f"{engine.name!r} are not on Ray: make it with dray.data, which has the same names, or "
            "call dray.init(engine='ray')"
        )


def split_on_start(backend: Backend, datasets: Mapping[str, Any], config: DataConfig) -> None:
    """Have a backend give each rank its share of datasets of Ray Data, at each start."""
    start = backend.on_training_start
    kept: list[object] = []  # the actor that splits ends with the driver's iterators

    def on_training_start(worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        ranks = len(worker_group)
        shares = {
            name: dataset.streaming_split(ranks, equal=config.equal)
            if config.splits(name)
            else [dataset.iterator()] * ranks
            for name, dataset in datasets.items()
        }
        kept[:] = [shares]
        for rank in range(ranks):
            own = {name: of_ranks[rank] for name, of_ranks in shares.items()}
            worker_group.execute_single(rank, _take, own)
        start(worker_group, backend_config)

    backend.on_training_start = on_training_start  # type: ignore[method-assign]


def _take(shares: Mapping[str, Any]) -> None:
    """Keep this rank's shares; the names are known from its datasets."""
    current_session("datasets").shards.update(shares)
