"""The reservations of a session in a Ray cluster, kept for a moment for its next run."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from dray.engines.base import CLOSED, PendingRequests
from dray.engines.ray import cluster
from dray.engines.ray.bundles import PlacedBundles
from dray.engines.ray.cluster import SilentNodes
from dray.engines.ray.errors import translate
from dray.engines.ray.tpu_slices import ask_for_slices, whole_hosts
from dray.errors import EngineError, InfeasibleError
from dray.scheduling.labels import NODE_ID
from dray.scheduling.requests import Node, PlacementPreview, Request, Reservation

_WAIT_STEP_S = 3600
# For how long Ray shows what was given back as taken; it tells nobody when that ends. A request
# that can never be met is refused within a second all the same.
_LAG_S = 2.0
_LAG_OF_THE_IMPOSSIBLE_S = 0.8
# Pause between looks, while bundles are kept, whether anybody waits: Ray tells nobody.
_LOOK_S = 0.1


class Reservations:
    """The bundles of a session: asked for, given back, kept.

    Args:
        connection: Holds up the end of the connection to Ray, and tells whether it is there.
        keep_s: For how long to keep bundles for a run that asks for the same.
    """

    def __init__(
        self,
        connection: Callable[[], AbstractContextManager[bool]],
        silent: SilentNodes,
        asked: PendingRequests,
        keep_s: float,
    ) -> None:
        self._connection = connection
        self._silent = silent
        self._keep_s = keep_s
        self._asked = asked
        self._released_at = -math.inf
        self._lock = threading.Lock()
        self._kept: PlacedBundles | None = None
        self._closed = False

    def close(self) -> None:
        """Cancel what waits, and give back what is kept."""
        with self._lock:
            self._closed = True
        self._asked.close()
        self.give_up()

    def kept(self) -> dict[str, float]:
        """Return the quantities that are kept, which are free for this session."""
        kept, quantities = self._kept, Counter[str]()
        for bundle in () if kept is None else kept.bundles:
            quantities.update(bundle)
        return dict(quantities)

    def give_up(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            self._remove(kept)

    def preview(self, request: Request) -> PlacementPreview:
        kept = self._kept
        if kept is not None and kept.request == request:
            nodes = self._staying()
            if all(place in nodes for place in kept.places):
                places = [nodes[place] for place in kept.places]
                devices = [{n: (*ids,) for n, ids in seen.devices.items()} for seen in kept.shown]
                return PlacementPreview(places, devices, chooser="Ray")
        self.give_up()
        while True:
            found = cluster.preview(request, self._silent.others())
            since_s = time.monotonic() - self._released_at
            if found.fits or since_s > _LAG_S:
                return found
            if since_s > _LAG_OF_THE_IMPOSSIBLE_S and self.lacking(request) is not None:
                return found
            time.sleep(_LAG_S / 40)  # Ray tells nobody that a resource is free

    def _staying(self) -> dict[str, Node]:
        """Return by id the nodes that answer and are not about to go."""
        return {node.node_id: node for node in self._silent.others() if not node.leaves}

    def lacking(self, request: Request) -> InfeasibleError | None:
        """Return what the nodes that answer lack for a request, if anything."""
        return cluster.lacking(request, self._silent.others())

    def reserve(self, request: Request) -> Future[Reservation]:
        """Ask for bundles; see `Engine.reserve`."""
        future: Future[Reservation] = Future()
        groups: list[PlacementGroup] = []

        @contextlib.contextmanager
        def wanted() -> Iterator[None]:
            with self._connection() as is_there:
                if future.cancelled() or not is_there:
                    raise EngineError(CLOSED)
                yield

        def ask(
            bundles: Sequence[Mapping[str, float]],
            strategy: str,
            selectors: Sequence[Mapping[str, str]],
        ) -> PlacementGroup:
            """Ask for a group and wait for it; who takes the request back ends the waiting."""
            chosen = {"bundle_label_selector": selectors} if any(selectors) else {}
            with wanted():
                group = placement_group([dict(b) for b in bundles], strategy=strategy, **chosen)
                groups.append(group)
            while not future.cancelled() and not group.wait(_WAIT_STEP_S):
                pass
            return group

        def placed() -> PlacedBundles:
            kept = self._take(request)
            if kept is not None:
                return kept
            selectors = self._selectors(request)
            bundles, strategy = request.bundles, request.strategy
            if request.slices is not None:
                strategy = "SPREAD"  # the labels of the slices decide
                selectors = ask_for_slices(
                    request, request.slices, selectors, ask, self._silent.others()
                )
                bundles = whole_hosts(request, request.slices)
            ask(bundles, strategy, selectors)
            is_gone = self._silent.any_gone
            return PlacedBundles(groups, request, is_gone, self._give_back, wanted)

        def wait() -> None:
            try:
                reservation = placed()
            except Exception as error:  # noqa: BLE001 (whoever asked must learn of it)
                self._remove_groups(groups)
                if future.set_running_or_notify_cancel():
                    future.set_exception(translate(error))
                return
            if future.set_running_or_notify_cancel():
                future.set_result(reservation)
            elif groups:  # nobody keeps what was taken back
                self._remove(reservation)
            else:
                reservation.release()

        def take_back(future: Future[Reservation]) -> None:
            if future.cancelled():
                self._remove_groups(groups)

        future.add_done_callback(take_back)
        self._asked.add(future)
        threading.Thread(target=wait, name="dray-reserve", daemon=True).start()
        return future

    def _selectors(self, request: Request) -> list[dict[str, str]]:
        """Return which nodes each bundle may lie on, those that do not answer left out."""
        silent = self._silent.ids()
        selectors = [dict(s) for s in request.selectors or [{}] * len(request.bundles)]
        if silent and self.lacking(request) is None:
            for selector in selectors:
                selector.setdefault(NODE_ID, f"!in({','.join(sorted(silent))})")
        return selectors

    def _take(self, request: Request) -> PlacedBundles | None:
        """Return what is kept if a request asks for it; it is given back otherwise."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is None:
            return None
        stays = kept.request == request and not kept.broken
        if stays and self._staying().keys() >= {*kept.places}:
            return kept.again()
        self._remove(kept)
        return None

    def _give_back(self, bundles: PlacedBundles) -> None:
        """Keep what a run has released, in place of what is kept; or give it back."""
        keeps = self._keep_s > 0 and not self._silent.ids().intersection(bundles.places)
        with self._lock:
            keeps = keeps and not self._closed
            others, self._kept = self._kept, bundles if keeps else None
        if others is not None:
            self._remove(others)
        if keeps:
            watch = threading.Thread(
                target=self._watch, args=(bundles,), name="dray-kept", daemon=True
            )
            watch.start()
        else:
            self._remove(bundles)

    def _watch(self, kept: PlacedBundles) -> None:
        """Give back what is kept when its time is over, or somebody waits."""
        deadline = time.monotonic() + self._keep_s
        while not kept.taken.wait(_LOOK_S):
            if time.monotonic() >= deadline or self._somebody_waits():
                with self._lock:
                    mine = self._kept is kept
                    self._kept = None if mine else self._kept
                if mine:
                    self._remove(kept)
                return

    def _somebody_waits(self) -> bool:
        with self._connection() as is_there:
            try:
                return not is_there or cluster.somebody_waits()
            except Exception:  # noqa: BLE001 (Ray raises what it likes: then nothing is kept)
                return True

    def _remove(self, bundles: PlacedBundles) -> None:
        bundles.taken.set()
        self._remove_groups(bundles.groups)
        # For a moment Ray does not tell the truth about what is free.
        self._released_at = time.monotonic()

    def _remove_groups(self, groups: Sequence[PlacementGroup]) -> None:
        """Give back what Ray has set aside, or do so no more."""
        with self._connection() as is_there:
            if is_there:
                for group in groups:
                    remove_placement_group(group)
