"""Scheduling strategies: the values of `scheduling_strategy=`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dray.checks import plain
from dray.compat.arguments import checked_arguments
from dray.engines.runtime import Group, Placement
from dray.errors import ArgumentTypeError, ConfigError
from dray.scheduling.labels import EXISTS, check_selector


@dataclass(frozen=True)
class PlacementGroupSchedulingStrategy:
    """Runs in a placement group.

    Args:
        placement_group: From `dray.util.placement_group`; None is outside any group, also for what
            is started within one that captures it.
        placement_group_bundle_index: The bundle, or -1 for any that has room.
        placement_group_capture_child_tasks: Whether what it starts runs in the group as well.

    Example:
        >>> import dray
        >>> from dray.util import placement_group, remove_placement_group
        >>> from dray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
        >>> group = placement_group([{"CPU": 1}])
        >>> @dray.remote(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
        ... def inside():
        ...     return dray.util.get_current_placement_group() is not None
        >>> dray.get(inside.remote())
        True
        >>> remove_placement_group(group)
    """

    placement_group: Any
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


@checked_arguments("NodeAffinitySchedulingStrategy")
@dataclass(frozen=True)
class NodeAffinitySchedulingStrategy:
    """Runs on one node.

    Args:
        node_id: The node, as `dray.nodes()` calls it.
        soft: Whether another node will do if that one is gone or can never hold it.

    Raises:
        AbsentArgumentError: `_spill_on_unavailable` or `_fail_on_unavailable` of Ray is given.

    Example:
        >>> import dray
        >>> from dray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        >>> node = dray.nodes()[0]["NodeID"]
        >>> @dray.remote(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        ... def where():
        ...     return dray.get_runtime_context().get_node_id()
        >>> dray.get(where.remote()) == node
        True
    """

    node_id: str
    soft: bool = False


class In:
    """A label has one of some values, in `NodeLabelSchedulingStrategy`.

    Example:
        >>> from dray.util.scheduling_strategies import In, NodeLabelSchedulingStrategy
        >>> one_of_two = NodeLabelSchedulingStrategy(hard={"zone": In("a", "b")})
    """

    _form = "in({})"

    def __init__(self, *values: str) -> None:
        if not values or not all(isinstance(value, str) for value in values):
            raise ArgumentTypeError(f"{type(self).__name__}(...) takes strings, not {values!r}")
        self.values = list(values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.values))})"

    def as_selector(self) -> str:
        """Return it as the value of a label selector."""
        return self._form.format(", ".join(self.values))


class NotIn(In):
    """A label is missing, or has none of some values.

    Example:
        >>> from dray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn
        >>> elsewhere = NodeLabelSchedulingStrategy(hard={"zone": NotIn("a", "b")})
    """

    _form = "!in({})"


class Exists:
    """A label is there, with any value.

    Example:
        >>> from dray.util.scheduling_strategies import Exists, NodeLabelSchedulingStrategy
        >>> in_any_zone = NodeLabelSchedulingStrategy(hard={"zone": Exists()})
    """

    _form = EXISTS

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def as_selector(self) -> str:
        """Return it as the value of a label selector."""
        return self._form


class DoesNotExist(Exists):
    """A label is missing.

    Example:
        >>> from dray.util.scheduling_strategies import DoesNotExist, NodeLabelSchedulingStrategy
        >>> in_no_zone = NodeLabelSchedulingStrategy(hard={"zone": DoesNotExist()})
    """

    _form = f"!{EXISTS}"


@dataclass(frozen=True)
class NodeLabelSchedulingStrategy:
    """Runs on nodes with certain labels.

    Args:
        hard: Labels to `In("a")`, `NotIn("a")`, `Exists()` or `DoesNotExist()`, or to "value",
            "!value", "in(a, b)" or "!in(a, b)"; they must hold.
        soft: The same; nodes where they hold come first.

    Example:
        >>> import dray
        >>> from dray.util.scheduling_strategies import In, NodeLabelSchedulingStrategy
        >>> near = NodeLabelSchedulingStrategy(soft={"zone": In("a", "b")})
        >>> @dray.remote(scheduling_strategy=near)
        ... def where():
        ...     return dray.get_runtime_context().get_node_id()
        >>> dray.get(where.remote()) == dray.nodes()[0]["NodeID"]
        True
    """

    hard: Mapping[str, str | In | Exists] = field(default_factory=dict)
    soft: Mapping[str, str | In | Exists] | None = None


def as_placement(strategy: object) -> Placement:
    """Return a scheduling strategy in the engines' words."""
    if strategy is None:
        return Placement()
    if strategy == "DEFAULT":
        return Placement("no group")
    if strategy == "SPREAD":
        return Placement("spread")
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        return _in_group(strategy)
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        return Placement("node", node_id=strategy.node_id, soft=bool(strategy.soft))
    if isinstance(strategy, NodeLabelSchedulingStrategy):
        hard, soft = _selector(strategy.hard, "hard"), _selector(strategy.soft or {}, "soft")
        return Placement("labels", hard_labels=hard, soft_labels=soft, soft=True)
    raise ArgumentTypeError(
        "scheduling_strategy must be None, 'DEFAULT', 'SPREAD' or a strategy of "
        f"dray.util.scheduling_strategies, not {strategy!r}"
    )


def _selector(expressions: Mapping[str, str | In | Exists], what: str) -> dict[str, str]:
    """Return expressions as a label selector."""
    if not isinstance(expressions, Mapping):
        raise ArgumentTypeError(f"{what} must be a dict of labels to In(...), not {expressions!r}")
    operators = {k: v.as_selector() for k, v in expressions.items() if isinstance(v, In | Exists)}
    texts: dict[str, Any] = {k: v for k, v in expressions.items() if k not in operators}
    check_selector({k: v for k, v in operators.items() if not v.endswith(EXISTS)}, what)
    check_selector(texts, what)
    return {**texts, **operators}


def _in_group(strategy: PlacementGroupSchedulingStrategy) -> Placement:
    placement_group, index = strategy.placement_group, plain(strategy.placement_group_bundle_index)
    if placement_group is None:
        if index != -1:
            raise ConfigError(
                f"placement_group_bundle_index is {index!r}, but there is no placement group; "
                "pass one with scheduling_strategy=PlacementGroupSchedulingStrategy(group, ...)"
            )
        return Placement("no group")
    group = getattr(placement_group, "_group", None)
    if not isinstance(group, Group):
        raise ArgumentTypeError(
            f"{placement_group!r} is not a placement group of dray.util.placement_group"
        )
    size = len(group.bundles)
    if not isinstance(index, int) or not -1 <= index < size:
        raise ConfigError(
            f"placement_group_bundle_index is {index!r}; the group has bundles 0 to {size - 1}, "
            "and -1 is any of them"
        )
    capture = bool(strategy.placement_group_capture_child_tasks)
    return Placement("group", group=group, bundle=index, capture=capture)
