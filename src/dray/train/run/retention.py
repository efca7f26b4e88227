"""Retention: the checkpoints to keep, and the best one. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dray.train.config import CheckpointConfig
from dray.train.storage.manifest import Committed


def lookup(metrics: Mapping[str, Any], name: str) -> Any:
    """Return a metric by its name; "a/b" is the nested `metrics["a"]["b"]`. None if absent."""
    if name in metrics:
        return metrics[name]
    value: Any = metrics
    for part in name.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def score(committed: Committed, attribute: str, order: str) -> float | None:
    """Return how good a checkpoint is, higher being better, or None if it has no number."""
    value = lookup(committed.rank_zero_metrics(), attribute)
    if isinstance(value, str):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        number = math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        return None
    if math.isnan(number):
        return None
    return number if order == "max" else -number


def ranked(checkpoints: Sequence[Committed], config: CheckpointConfig) -> list[Committed]:
    """Return checkpoints from the worst to the best; without a score, from old to new.

    One that has no number is worse than any that has one.
    """
    attribute = config.checkpoint_score_attribute
    if attribute is None:
        return list(checkpoints)

    def key(committed: Committed) -> tuple[bool, float]:
        number = score(committed, attribute, config.checkpoint_score_order)
        return number is not None, -math.inf if number is None else number

    return sorted(checkpoints, key=key)


def checkpoints_to_delete(
    checkpoints: Sequence[Committed], config: CheckpointConfig, *, validates: bool = False
) -> list[Committed]:
    """Return the checkpoints to delete, given all of them, oldest first.

    The newest is kept in any case, since a restart resumes from it: so one more than asked for, if
    it is not among the best.

    Args:
        validates: Whether to keep also those whose validation has not ended.
    """
    if config.num_to_keep is None or not checkpoints:
        return []
    newest = checkpoints[-1]
    surplus = ranked(checkpoints, config)[: -config.num_to_keep]
    return [each for each in surplus if each is not newest and not (validates and each.is_pending)]
