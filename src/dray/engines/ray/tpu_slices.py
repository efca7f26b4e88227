"""TPU slices of a Ray cluster: reserved by their heads first, then host by host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ray.util.placement_group import PlacementGroup, placement_group_table

from dray.accelerators.node_names import SLICE_NAME_LABEL, WORKER_ID_LABEL
from dray.engines.ray import cluster
from dray.errors import EngineError
from dray.scheduling.requests import Node, Request, Slices
from dray.scheduling.tpu_slices import hosts_of_slices

_Selectors = Sequence[Mapping[str, str]]
_Ask = Callable[[Sequence[Mapping[str, float]], str, _Selectors], PlacementGroup]


def ask_for_slices(
    request: Request,
    slices: Slices,
    selectors: Sequence[dict[str, str]],
    ask: _Ask,
    present: Sequence[Node],
) -> list[dict[str, str]]:
    """Take slices, and return which nodes each bundle of a request may lie on then.

    Args:
        selectors: Label selector of each bundle, as far as the request has one.
        ask: Asks for a group of bundles with a strategy and selectors, and waits for it.
    """
    if not slices.head:  # of one host: who has all its chips has the slice
        return [*selectors]
    unfit = ",".join(_unfit(request, slices, present))
    without = {SLICE_NAME_LABEL: f"!in({unfit})"} if unfit else {}
    firsts = [{**selectors[number * slices.hosts], **without} for number in range(slices.count)]
    heads = ask([{slices.head: 1}] * slices.count, "STRICT_SPREAD", firsts)
    where = placement_group_table(heads)["bundles_to_node_id"]
    labels = {node.node_id: node.labels for node in cluster.nodes()}
    names = sorted({labels.get(node, {}).get(SLICE_NAME_LABEL, "") for node in where.values()})
    if len(names) < slices.count or not all(names):
        raise EngineError(
            f"the nodes that offer {slices.head} do not name their slices: {SLICE_NAME_LABEL} is "
            f"missing or the same on several ({names})"
        )
    narrowed = [
        {
            **selectors[number * slices.hosts + host],
            SLICE_NAME_LABEL: name,
            WORKER_ID_LABEL: str(host),
        }
        for number, name in enumerate(names)
        for host in range(slices.hosts)
    ]
    return [*narrowed, *selectors[len(narrowed) :]]


def whole_hosts(request: Request, slices: Slices) -> list[Mapping[str, float]]:
    """Return a request's bundles with all chips of their hosts, though workers get fewer."""
    held = map(slices.held_at, range(len(request.bundles)))
    return [
        {**bundle, "TPU": bundle["TPU"] + more["TPU"]} if more else bundle
        for bundle, more in zip(request.bundles, held, strict=True)
    ]


def _unfit(request: Request, slices: Slices, present: Sequence[Node]) -> list[str]:
    """Return the slices that are broken or in use, though their heads may be free.

    Only if there are enough others; else Ray is to decide which one to wait for.
    """
    if not cluster.preview(request, present).fits:
        return []
    one = replace(
        request,
        bundles=request.bundles[: slices.hosts],
        selectors=request.selectors[: slices.hosts],
        slices=replace(slices, count=1),
    )
    return [
        name
        for name, hosts in hosts_of_slices(present).items()
        if not cluster.preview(one, [present[host] for host in hosts]).fits
    ]
