"""The shares of a trainer's datasets that its workers read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dray.errors import NoSuchDatasetError
from dray.train.data_config import DataConfig
from dray.train.worker.current_session import current_session

if TYPE_CHECKING:
    from dray.data.iterator import DataIterator
    from dray.data.numbering.position import Position
    from dray.train.worker.session import TrainSession

__all__ = ["get_dataset_shard"]


def get_dataset_shard(dataset_name: str | None = None) -> DataIterator:
    """Return this rank's share of a dataset that was given to the trainer.

    Args:
        dataset_name: Its name in `datasets`; default: the only one, or "train".

    Returns:
        A `dray.data.DataIterator`, the same one at each call. Its position goes into every
        checkpoint of the run, and a run that resumes from one goes on there.

    Raises:
        NoSuchDatasetError: There is none of that name.
        NotInTrainingError: Called outside a train function.

    Example:
        >>> import dray.data
        >>> from dray.train import DataParallelTrainer, ScalingConfig, get_dataset_shard
        >>> def train_loop():
        ...     shard = get_dataset_shard("train")
        ...     return [batch["id"].tolist() for batch in shard.iter_batches(batch_size=2)]
        >>> trainer = DataParallelTrainer(
        ...     train_loop,
        ...     scaling_config=ScalingConfig(num_workers=2),
        ...     datasets={"train": dray.data.range(8)},
        ... )
        >>> trainer.fit().return_value
        [[0, 2], [4, 6]]
    """
    session = current_session("get_dataset_shard")
    datasets = session.datasets.by_name
    name = dataset_name
    if name is None:
        name = next(iter(datasets)) if len(datasets) == 1 else "train"
    if name not in datasets:
        raise NoSuchDatasetError(
            f"there is no dataset {name!r}; the trainer was given "
            f"{', '.join(map(repr, datasets)) or 'none: give it datasets={...}'}"
        )
    if name not in session.shards:
        session.shards.update(_shards(session, name))
    if name not in session.shards:
        raise NoSuchDatasetError(
            f"configure() of {type(session.datasets.config).__name__} returns no share of {name!r}"
        )
    shard: DataIterator = session.shards[name]
    return shard


def _shards(session: TrainSession, name: str) -> dict[str, Any]:
    """Return this rank's share of a dataset, or all that a program's own config gives it."""
    config, assignment = session.datasets.config, session.assignment
    if type(config).configure is DataConfig.configure:
        return {name: _shard(session, name)}
    of_ranks = config.configure(dict(session.datasets.by_name), assignment.world_size, None, None)
    own = dict(of_ranks[assignment.rank])
    return {key: shard.placed(_device) for key, shard in own.items()}


def _shard(session: TrainSession, name: str) -> Any:
    from dray.data.iterator import DataIterator

    config, dataset = session.datasets.config, session.datasets.by_name[name]
    assignment = session.assignment
    splits = config.splits(name)
    shard = DataIterator(
        dataset,
        assignment.rank if splits else 0,
        assignment.world_size if splits else 1,
        equal=config.equal and splits,
        positions=positions_of(session, name, splits=splits) if config.resume else None,
        device=_device,
        execution_options=config.execution_options_of(name),
    )
    session.positions[name] = lambda: shard.position.to_json()
    session.waited[name] = lambda: shard.waited_s
    return shard


def positions_of(session: TrainSession, name: str, *, splits: bool = True) -> list[Position]:
    """Return where ranks were in a dataset, as the checkpoint that the run resumes from tells.

    Args:
        name: Name of the dataset, or of what else has positions.
        splits: Whether each rank has a share of it.
    """
    from dray.data.numbering.position import Position

    ranks = session.assignment.run.positions
    known = {rank: of[name] for rank, of in ranks.items() if name in of}
    if not known:
        return []
    if not splits:
        own = known.get(session.assignment.rank, known[min(known)])
        return [Position.from_json(own)]
    positions = {rank: Position.from_json(place) for rank, place in known.items()}
    behind = min(positions.values(), key=lambda position: position.epoch)
    unread = Position(behind.epoch, 0, behind.seen, behind.rows)
    return [positions.get(rank, unread) for rank in sorted(ranks)]


def is_of_shard(batches: object) -> bool:
    """Return whether something is what `iter_torch_batches` and the like return."""
    iterator = sys.modules.get("dray.data.iterator")  # without it, there are none
    return iterator is not None and isinstance(batches, iterator.Epochs)


def _device() -> Any:
    from dray.train.torch.devices import get_device

    return get_device()
