"""Placement groups: bundles of resources set aside together, for tasks and actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dray import session
from dray.compat.arguments import check_arguments
from dray.compat.attributes import attach_getattr
from dray.core.options import resources_of
from dray.engines.placement_group import PlacementGroup
from dray.engines.runtime import GroupSpec
from dray.errors import ArgumentTypeError, ConfigError
from dray.scheduling.labels import check_selector
from dray.scheduling.placement import STRATEGIES

__all__ = [
    "VALID_PLACEMENT_GROUP_STRATEGIES",
    "PlacementGroup",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]

attach_getattr(__name__)


VALID_PLACEMENT_GROUP_STRATEGIES = frozenset(STRATEGIES)


def placement_group(
    bundles: Sequence[Mapping[str, float]],
    strategy: str | None = None,
    name: str = "",
    lifetime: str | None = None,
    _soft_target_node_id: str | None = None,
    bundle_label_selector: Sequence[Mapping[str, str]] | None = None,
    topology_strategy: Mapping[str, str] | None = None,
) -> PlacementGroup:
    """Ask for bundles of resources; return at once.

    Args:
        bundles: Name to quantity, for each bundle.
        strategy: "PACK" (the default), "SPREAD", "STRICT_PACK" (all on one node) or
            "STRICT_SPREAD" (each on a node of its own).
        name: For `get_placement_group`.
        lifetime: "detached" outlives the driver; Ray engine only.
        _soft_target_node_id: None.
        bundle_label_selector: For each bundle the labels that its node must have.
        topology_strategy: None.

    Raises:
        ConfigError: An argument is malformed.
        InfeasibleError: No nodes can ever offer the bundles.

    Example:
        >>> import dray
        >>> from dray.util.placement_group import placement_group, remove_placement_group
        >>> group = placement_group([{"CPU": 1}], strategy="STRICT_PACK")
        >>> group.wait()
        True
        >>> remove_placement_group(group)
    """
    if isinstance(bundles, str | Mapping) or not isinstance(bundles, Sequence) or not bundles:
        raise ArgumentTypeError(f"bundles must be a non-empty list of dicts, not {bundles!r}")
    checked = [resources_of(bundle, f"bundle {i}") for i, bundle in enumerate(bundles)]
    for index, bundle in enumerate(checked):
        if not bundle:
            raise ConfigError(f"bundle {index} asks for nothing; give it a quantity above 0")
    if _soft_target_node_id is not None or topology_strategy:
        check_arguments(
            "placement_group",
            {"_soft_target_node_id": _soft_target_node_id, "topology_strategy": topology_strategy},
            ("bundles", "strategy", "name", "lifetime", "bundle_label_selector"),
        )
    strategy = "PACK" if strategy is None else strategy
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy {strategy!r} is not one of {', '.join(STRATEGIES)}")
    if not isinstance(name, str):
        raise ArgumentTypeError(f"name must be a string, not {name!r}")
    if lifetime not in (None, "detached"):
        raise ArgumentTypeError(f"lifetime must be 'detached' or None, not {lifetime!r}")
    selectors = bundle_label_selector or []
    if selectors and len(selectors) != len(bundles):
        raise ConfigError(
            f"bundle_label_selector has {len(selectors)} selectors for {len(bundles)} bundles"
        )
    for selector in selectors:
        check_selector(selector, "bundle_label_selector")
    runtime = session.current_runtime()
    return PlacementGroup(
        runtime.make_group(
            GroupSpec(
                bundles=checked,
                strategy=strategy,
                name=name,
                detached=lifetime == "detached",
                selectors=[dict(selector) for selector in selectors],
            )
        )
    )


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Give the bundles back, and kill the tasks and actors in them.

    Example:
        >>> from dray.util import placement_group, placement_group_table, remove_placement_group
        >>> group = placement_group([{"CPU": 1}])
        >>> remove_placement_group(group)
        >>> placement_group_table(group)["state"]
        'REMOVED'
    """
    if not isinstance(placement_group, PlacementGroup):
        raise ArgumentTypeError(
            f"remove_placement_group() takes a PlacementGroup, not {placement_group!r}"
        )
    placement_group._group.remove()


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Return the placement group of that name.

    Raises:
        ConfigError: There is none (also a ValueError).

    Example:
        >>> from dray.util import get_placement_group, placement_group, remove_placement_group
        >>> group = placement_group([{"CPU": 1}], name="pair")
        >>> get_placement_group("pair") == group
        True
        >>> remove_placement_group(group)
    """
    found = session.current_runtime().named_group(placement_group_name)
    if found is None:
        raise ConfigError(f"no placement group is called {placement_group_name!r}")
    return PlacementGroup(found)


def get_current_placement_group() -> PlacementGroup | None:
    """Return the placement group that the calling code runs in; None outside one.

    Example:
        >>> from dray.util import get_current_placement_group
        >>> get_current_placement_group() is None  # this code does not run in one
        True
    """
    group = session.current_runtime().execution_context().group
    return None if group is None else PlacementGroup(group)


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Return what is known of a placement group, or of all of them by id.

    Returns:
        For each: `placement_group_id`, `name`, `state`, `strategy`, `bundles` (by index) and
        `bundles_to_node_id`.

    Example:
        >>> from dray.util import placement_group, placement_group_table, remove_placement_group
        >>> group = placement_group([{"CPU": 1}])
        >>> group.wait()
        True
        >>> placement_group_table(group)["state"]
        'CREATED'
        >>> remove_placement_group(group)
    """
    table = {entry["placement_group_id"]: entry for entry in session.current_runtime().groups()}
    return table if placement_group is None else table.get(placement_group.id, {})
