"""Arguments of a worker's tasks, and their results and errors."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Sequence
from typing import Any

from dray.engines.object_ref import ObjectRef
from dray.engines.process.client.runtime import Awaited
from dray.engines.process.worker.runtime import WorkerRuntime
from dray.engines.result_lists import DynamicObjectRefGenerator, split
from dray.engines.rpc import actor_host, serialization, wire
from dray.engines.rpc.serialization import RAISED, Packed, Payload, Result, Retried, pack_result
from dray.engines.rpc.titled_output import TitledOutput
from dray.engines.runtime import Args, Kwargs, ReturnCount


class PartialResultsError(Exception):
    """Raised from what ends a call amid its results; those before are results all the same.

    Args:
        values: Those before.
        items: References to those before where their number is open; one of the error follows.
    """

    def __init__(self, values: list[Result], items: list[ObjectRef] | None = None) -> None:
        super().__init__()
        self.values = values
        self.items = items


def is_too_far(index: int, most_unread: int) -> bool:
    """Return whether a generator has to hear of its reader after an item; 0 is no limit."""
    return 0 < most_unread <= index + 1


def read_before_next(index: int, most_unread: int) -> int:
    """Return how many items must have been read before the one that follows an item is made."""
    return index + 2 - most_unread


class Results:
    """Loads the arguments of tasks and calls, and packs what comes of them.

    Attributes:
        output: Output of the process, which it titles.
    """

    def __init__(self, runtime: WorkerRuntime) -> None:
        self.runtime = runtime
        self.output = TitledOutput()
        self._profiles: bool = runtime._begin["profiles"]
        # By task: references in its results, until the hub holds them for these.
        self._kept: dict[int, Sequence[Any]] = {}

    def arguments(self, unread: list[Payload]) -> tuple[Args, Kwargs]:
        """Return the arguments of a task or call.

        Args:
            unread: Payload of the arguments, and those of what is awaited among them; what is read
                is taken from them.
        """
        payload = unread[0]
        if type(payload) is bytes and len(unread) == 1:  # the most common, and the fastest
            unread.clear()
            plain: tuple[Args, Kwargs] = serialization.unpack(payload)
            return plain
        load = self.runtime.load_last
        unread.reverse()
        args, kwargs = load(unread)
        if unread:
            values = [load(unread) for _ in range(len(unread))]
            args = tuple(values[a.index] if type(a) is Awaited else a for a in args)
            kwargs = {k: values[v.index] if type(v) is Awaited else v for k, v in kwargs.items()}
        return args, kwargs

    def pack_results(
        self, value: Any, returns: ReturnCount, name: str, number: int, most_unread: int = 0
    ) -> list[Result]:
        """Return the payloads of what a task or call has returned.

        Raises:
            PartialResultsError: It has not as many parts, or one of them raised.
        """
        if returns == 1 and not inspect.isgenerator(value):
            return [self._pack(value, name, number)]
        if returns == "streaming":
            for index, item in enumerate(value):
                self.send_item(number, index, item, name)
                self.keep_pace(number, index, most_unread)
            return [self._pack(None, name, number)]
        if returns == "dynamic":
            items: list[ObjectRef] = []
            yielded = iter(value)
            try:
                for item in yielded:
                    items.append(self.runtime.put(item))
            except Exception as error:
                raise PartialResultsError([], items) from error
            return [self._pack(DynamicObjectRefGenerator(items), name, number)]
        values: list[Result] = []
        try:
            for part in split(value, returns, name):
                values.append(self._pack(part, name, number))
        except Exception as error:
            raise PartialResultsError(values) from error
        return values

    def send_item(self, number: int, index: int, item: object, name: str) -> None:
        payload, nested = self._pack(item, name, number)
        self.runtime.say("item", number, index, next(self.runtime._ids), payload, nested)
        self._kept.pop(number, None)

    def keep_pace(self, number: int, index: int, most_unread: int) -> None:
        """Wait until fewer items than that are unread."""
        if is_too_far(index, most_unread):
            self.runtime.await_answer("pace", number, read_before_next(index, most_unread))

    def _pack(self, value: object, name: str, number: int) -> Result:
        packed = pack_result(value, f"the return value of {name}")
        if isinstance(packed, Packed) and packed.refs:
            self._kept[number] = (*self._kept.get(number, ()), *packed.refs)
        return self.runtime.stored(packed)

    def _end(self, number: int) -> None:
        """Close the output of a task or call, and tell when it has run."""
        self.output.end()
        if self._profiles and "began" in (here := self.runtime.here()):
            self.runtime.say("timed", number, here["began"], time.time())
        self.runtime.cancelled.discard(number)

    def tell_results(self, number: int, values: list[Result]) -> None:
        """Tell the hub what a task or call has returned, after what it has printed."""
        self._end(number)
        self.runtime.say("done", number, values)
        self._kept.pop(number, None)

    def tell_error(
        self,
        number: int,
        error: BaseException,
        where: str,
        retried: Retried | bytes,
        word: str = "raised",
    ) -> None:
        """Tell the hub what a task or call has raised, after what it has printed."""
        self._end(number)
        values: list[Result] = []
        items: list[ObjectRef] | None = None
        if isinstance(error, PartialResultsError) and error.__cause__ is not None:
            values, items = error.values, error.items
            error = error.__cause__
        with serialization.noting_references() as refs:
            dumped = wire.dump_error(error, actor_host.users_part(error))
        payload = (
            RAISED,
            dumped,
            f"{where} (pid {os.getpid()}, node {self.runtime._begin['node_id']})",
        )
        retried = serialization.types_of(retried)
        listed = isinstance(error, retried) if isinstance(retried, tuple) else retried is True
        retriable = listed and isinstance(error, Exception)
        nested = [ref.number for ref in refs]
        if items is not None:
            items.append(self.runtime.put_payload(payload, nested))
            values = [self._pack(DynamicObjectRefGenerator(items), where, number)]
        more = (nested, retriable, values) if word == "raised" else (nested,)
        self.runtime.say(word, number, payload, *more)
        self._kept.pop(number, None)
