"""Bundles that Ray has reserved: the node of each, and its devices."""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dray.accelerators import families, families_on
from dray.engines.runtime import Described
from dray.errors import NodeDiedError
from dray.scheduling.requests import Request, Reservation

# After which its node may be gone.
_LOOK_AGAIN_S = 2.0


class Shown(NamedTuple):
    """The devices of a bundle.

    Attributes:
        devices: Their ids, by resource name.
        variables: Those that show them to a process; None is not set.
    """

    devices: Mapping[str, Sequence[str]]
    variables: Mapping[str, str | None]


class PlacedBundles(Reservation):
    """Bundles that Ray has set aside.

    Args:
        groups: The placement groups that hold them; the last one has the bundles.
        is_gone: Calls some nodes, and returns whether one does not answer.
        give_back: Takes them when they are released.
        wanted: Holds up the end of the connection to Ray; it raises if they are not wanted any
            more. Nobody who takes them back waits longer than one call to Ray.

    Attributes:
        taken: Set once they are not kept for another run any more.
        places: For each bundle the id of its node.
    """

    def __init__(
        self,
        groups: Sequence[PlacementGroup],
        request: Request,
        is_gone: Callable[[Sequence[str]], bool],
        give_back: Callable[[PlacedBundles], object],
        wanted: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.groups = groups
        self.group = groups[-1]
        self.request = request
        self.bundles = request.bundles
        self.taken = threading.Event()
        self._is_gone = is_gone
        self._give_back = give_back
        with wanted():
            where = placement_group_table(self.group)["bundles_to_node_id"]
            self.places = [where[number] for number in range(len(self.bundles))]
            looks = self._looks()
        self.shown = self._devices_seen(looks, wanted)
        self._released = False

    def _looks(self) -> dict[int, Future[Shown]]:
        """Ask for the devices of the bundles that have any.

        Ray tells them to who runs in the bundle: a task that is over at once.
        """
        return {
            number: _looker()
            .options(
                **resources_of(bundle),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self.group, placement_group_bundle_index=number
                ),
            )
            .remote()
            .future()
            for number, bundle in enumerate(self.bundles)
            if families_on(bundle)
        }

    def _devices_seen(
        self, looks: Mapping[int, Future[Shown]], wanted: Callable[[], AbstractContextManager[None]]
    ) -> list[Shown]:
        """Return the devices of each bundle: they are the same for as long as the group is there.

        Ray may first have to make the job's runtime environment, which takes as long as it takes.

        Raises:
            NodeDiedError: A node is gone. Ray would look for another one first, and wait for it.
        """
        while futures.wait(looks.values(), timeout=_LOOK_AGAIN_S).not_done:
            with wanted():
                if self.broken:
                    raise NodeDiedError(None, details="its node is gone")
        found = {number: look.result() for number, look in looks.items()}
        return [found.get(number, Shown({}, {})) for number in range(len(self.bundles))]

    @property
    def broken(self) -> bool:
        return self._is_gone(list(dict.fromkeys(self.places)))

    def again(self) -> PlacedBundles:
        """Return the same bundles for another run, after they have been released."""
        self.taken.set()
        other = copy.copy(self)
        other.taken, other._released = threading.Event(), False
        return other

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._give_back(self)


def resources_of(bundle: Mapping[str, float]) -> Described:
    """Return a bundle in the words of an actor's options."""
    further = dict(bundle)
    options = {
        "num_cpus": further.pop("CPU", 0),
        "num_gpus": further.pop("GPU", 0),
        "memory": further.pop("memory", 0),
    }
    return {**options, "resources": further}


def _look() -> Shown:
    ids = ray.get_runtime_context().get_accelerator_ids()
    names = [name for family in families() for name in (*family.variables, *family.also_set)]
    return Shown(
        {name: tuple(given) for name, given in ids.items() if given},
        {name: os.environ.get(name) for name in names},
    )


@functools.cache
def _looker() -> Any:
    return ray.remote(max_calls=0, max_retries=0)(_look)
