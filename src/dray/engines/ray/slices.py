"""TPU slices of a Ray cluster: taken by their heads first, then host by host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ray.util.placement_group import PlacementGroup, placement_group_table

from dray.accelerators.topology import SLICE_NAME_LABEL, WORKER_ID_LABEL
from dray.engines.contract import Request, Slices
from dray.engines.ray import cluster
from dray.errors import EngineError

_Selectors = Sequence[Mapping[str, str]]
_Ask = Callable[[Sequence[Mapping[str, float]], str, _Selectors], PlacementGroup]


def ask_for_slices(
    request: Request, slices: Slices, selectors: Sequence[dict[str, str]], ask: _Ask
) -> list[dict[str, str]]:
    """Takes slices, and returns which nodes each bundle of a request may lie on then.

    Args:
        request: What is wanted.
        slices: How many slices of which kind.
        selectors: Which nodes each bundle may lie on as far as the request says it.
        ask: Asks for a group of bundles with a strategy and selectors, and waits for it.
    """
    firsts = [selectors[number * slices.hosts] for number in range(slices.count)]
    heads = ask([{slices.head: 1}] * slices.count, "STRICT_SPREAD", firsts)
    where = placement_group_table(heads)["bundles_to_node_id"]
    labels = {node.node_id: node.labels for node in cluster.nodes()}
    names = sorted({labels.get(node, {}).get(SLICE_NAME_LABEL, "") for node in where.values()})
    if len(names) < slices.count or not all(names):
        raise EngineError(
            f"the nodes that offer {slices.head} do not say their slices: {SLICE_NAME_LABEL} "
            f"is missing or the same on several ({names})"
        )
    narrowed = [
        {
            **selectors[number * slices.hosts + host],
            SLICE_NAME_LABEL: name,
            **({WORKER_ID_LABEL: str(host)} if slices.hosts > 1 else {}),
        }
        for number, name in enumerate(names)
        for host in range(slices.hosts)
    ]
    return [*narrowed, *selectors[len(narrowed) :]]
