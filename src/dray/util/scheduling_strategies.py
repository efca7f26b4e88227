"""Where a task or an actor may run: what `scheduling_strategy=` takes."""

from dray.answers import answer_for
from dray.core.placement import (
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

__all__ = [
    "NodeAffinitySchedulingStrategy",
    "NodeLabelSchedulingStrategy",
    "PlacementGroupSchedulingStrategy",
]

answer_for(__name__)
