"""Which checkpoints are kept, and which is best. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dray.train.config import CheckpointConfig
from dray.train.run_directory import Committed


def lookup(metrics: Mapping[str, Any], name: str) -> Any:
    """Returns a metric by its name; "a/b" is the nested `metrics["a"]["b"]`. None if absent."""
    if name in metrics:
        return metrics[name]
    value: Any = metrics
    for part in name.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def score(committed: Committed, attribute: str, order: str) -> float:
    """Returns how good a checkpoint is, higher being better; what has no number is worst."""
    value = lookup(committed.rank_zero_metrics(), attribute)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return -math.inf
    if math.isnan(number):
        return -math.inf
    return number if order == "max" else -number


def ranked(checkpoints: Sequence[Committed], config: CheckpointConfig) -> list[Committed]:
    """Returns checkpoints from the worst to the best; without a score, from old to new."""
    attribute = config.checkpoint_score_attribute
    if attribute is None:
        return list(checkpoints)
    return sorted(checkpoints, key=lambda c: score(c, attribute, config.checkpoint_score_order))


def surplus(checkpoints: Sequence[Committed], config: CheckpointConfig) -> list[Committed]:
    """Returns the checkpoints to delete, given all of them, oldest first.

    The newest is always kept, since a restart goes on from it.
    """
    if config.num_to_keep is None or not checkpoints:
        return []
    newest = checkpoints[-1]
    best_first = [newest, *reversed(ranked(checkpoints[:-1], config))]
    return best_first[config.num_to_keep :]
