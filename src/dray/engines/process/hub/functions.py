"""Functions and classes in the hub: their options, and the resources that they request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.records import (
    Client,
    FunctionDescriptor,
    GroupRecord,
    SchedulingClass,
)
from dray.engines.runtime import GROUP_REMOVED
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ConfigError, DrayError, InfeasibleError
from dray.scheduling.bundle_ledger import BUNDLE_LABEL
from dray.scheduling.labels import NODE_ID
from dray.scheduling.ledger import Ledger
from dray.scheduling.placement import Demand
from dray.scheduling.requests import Request


def of_lost_bundles(error: InfeasibleError) -> InfeasibleError:
    """Return the error of what does not fit into the bundles that nodes which died have left."""
    return InfeasibleError(
        "none of the remaining bundles of its placement group can hold it, and the others were "
        "lost with their nodes; make a new group",
        asked=error.asked,
        available=error.available,
    )


class FunctionTable:
    """All functions and classes that are used.

    Each has an object in the store, which the process that has told of it holds, and so does each
    of its tasks. A process that tells of the same once more has an object of its own, which refers
    to the first. With the last of them the function is forgotten, here and in the workers.

    Args:
        on_unused: Called with the key of a function that is forgotten.
    """

    def __init__(self, hub: Hub, ledger: Ledger, on_unused: Callable[[bytes], None]) -> None:
        self._hub = hub
        self._ledger = ledger
        self._on_unused = on_unused
        self.all: dict[bytes, FunctionDescriptor] = {}
        self.shapes: dict[object, SchedulingClass] = {}
        self.groups: dict[int, GroupRecord] = {}  # kept by `placement_groups.py`

    def on_kind(
        self,
        client: Client,
        question: int,
        key: bytes,
        number: int,
        what: Literal["task", "actor"],
        blob: tuple[bytes, list[bytes]],
        nested: Sequence[int],
        options: Mapping[str, Any],
        place: Mapping[str, Any],
    ) -> None:
        try:
            kind = self.all.get(key)
            shape = kind.shape if kind else self._shape(options, place, long_lived=what == "actor")
        except DrayError as error:
            self._hub.refuse(client, question, error)
            return
        self._hub.own(client, (number,))
        if kind is None:
            name = options["name"] if what == "task" else options["class_name"]
            self.all[key] = FunctionDescriptor(key, number, what, blob, options, shape, name)
            shape.kinds += 1
            self._hub.store.seal(number, b"", nested)
            self._hub.store.when_unused(number, lambda: self._forget(key))
        else:
            self._hub.store.seal(number, b"", (kind.number,))
        self._hub.reply(client, question, None)

    def _forget(self, key: bytes) -> None:
        shape = self.all.pop(key).shape
        shape.kinds -= 1
        if not shape.kinds:
            self.shapes.pop(shape.key, None)
        self._on_unused(key)

    def forget_group(self, number: int) -> None:
        """Forget a placement group that was removed, of which nobody has a handle."""
        del self.groups[number]
        self.shapes = {key: it for key, it in self.shapes.items() if it.group != number}

    def _shape(
        self, options: Mapping[str, Any], place: Mapping[str, Any], long_lived: bool
    ) -> SchedulingClass:
        resources = options["placement_resources"]
        environment: RuntimeEnv = options["runtime_env"]
        runtime_env = (
            tuple(sorted(environment.env_vars.items())),
            environment.local_directory("process"),
        )
        ledger, selector = self._ledger, dict(options["label_selector"])
        group = record = None
        if place["kind"] == "group":
            record = self.groups.get(place["group"])
            if record is None or record.state == "REMOVED":
                raise ConfigError(GROUP_REMOVED)
            ledger, group = record.ledger, record.number
            if place["bundle"] >= 0:
                selector[BUNDLE_LABEL] = str(place["bundle"])
        elif place["kind"] == "node":
            selector[NODE_ID] = place["node_id"]
        elif place["kind"] == "labels":
            selector.update(place["hard_labels"])
        spread = place["kind"] == "spread" or (long_lived and not options["resources"])
        strategy = "SPREAD" if spread else "PACK"

        def checked() -> Demand:
            selectors = [selector] if selector else []
            demand = ledger.check(Request([resources], strategy, selectors, long_lived))
            if resources == options["resources"]:
                return demand
            (bundle,) = demand.bundles  # it is placed where that is offered, and then holds nothing
            bundle = bundle._replace(quantities=(), offered=bundle.quantities)
            return demand._replace(bundles=(bundle,))

        prefers = place["soft"] and place["kind"] == "node"
        try:
            demand = checked()
        except InfeasibleError as error:
            if record is not None and record.state == "RESCHEDULING":
                raise of_lost_bundles(error) from None
            if not prefers:
                raise
            prefers = False
            del selector[NODE_ID]
            demand = checked()
        elsewhere = None
        if prefers:
            del selector[NODE_ID]
            elsewhere = checked()
        key = (demand, elsewhere, id(ledger), runtime_env, place["capture"])
        shape = self.shapes.get(key)
        if shape is None:
            held = dict(options["resources"])
            shape = self.shapes[key] = SchedulingClass(key, demand, ledger, runtime_env, held)
            shape.group, shape.capture, shape.elsewhere = group, place["capture"], elsewhere
        return shape
