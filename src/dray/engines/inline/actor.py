"""Actors and placement groups of the inline engine."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import uuid
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from dray.engines.inline.execution import Gate, Host, Work, begin, perform, submit
from dray.engines.inline.values import InlineRef, Loop, Pickled, Stored, settled
from dray.engines.object_ref import ObjectRef
from dray.engines.placement_group import PlacementGroup
from dray.engines.rpc.actor_host import exit_status, is_intended, made, method_of
from dray.engines.rpc.serialization import pack
from dray.engines.runtime import (
    ActorBackend,
    ActorOptions,
    Args,
    CallOptions,
    Described,
    ExecutionContext,
    Group,
    GroupSpec,
    Kwargs,
    Returned,
    Submit,
    no_concurrency_group,
)
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import (
    ActorDiedError,
    ActorUnavailableError,
    DrayError,
    GroupRemovedError,
    PendingCallsLimitExceeded,
)
from dray.scheduling.ledger import Held
from dray.scheduling.requests import Reservation
from dray.status import ActorStatus


class ExitActor(SystemExit):
    """Raised by `exit_actor`."""


class InlineGroup(Pickled, Group):
    """A placement group: what it asks for is held, or will be when another group is removed."""

    def __init__(self, spec: GroupSpec, held: Future[Reservation]) -> None:
        super().__init__()
        self.spec = spec
        self.bundles = spec.bundles
        self.removed = False
        self.actors: weakref.WeakSet[InlineObject] = weakref.WeakSet()
        self._held = held

    @property
    def group_id(self) -> str:
        return self.key

    def ready(self) -> ObjectRef:
        ref = InlineRef()
        itself = Stored(pack(PlacementGroup(self), "a placement group"))

        def deliver(held: Future[Reservation]) -> None:
            gone = self.removed or held.cancelled()
            settled(self._removed() if gone else itself, ref.outcome)

        self._held.add_done_callback(deliver)
        return ref

    def wait(self, timeout_s: float | None) -> bool:
        concurrent.futures.wait([self._held], timeout_s)
        if self.removed:
            raise self._removed()
        return self._held.done()

    def remove(self) -> None:
        if self.removed:
            return
        self.removed = True
        for actor in list(self.actors):
            actor.end(f"it ended with its {self.title}, which was removed")
        if not self._held.cancel():
            self._held.result().release()

    def describe(self) -> Described:
        held = self._held.result() if self._held.done() and not self.removed else None
        nodes = held.nodes if isinstance(held, Held) else []
        state = "REMOVED" if self.removed else "CREATED" if held else "PENDING"
        return self.spec.describe(self.key, state, nodes)

    @property
    def title(self) -> str:
        return self.spec.title(self.key)

    def _removed(self) -> GroupRemovedError:
        return GroupRemovedError(f"{self.title} was removed")


@dataclass(eq=False, repr=False)
class InlineObject(Pickled, Host, ActorBackend):
    """An actor in this process; it ends with the last handle.

    Attributes:
        forgotten: Takes what it holds when nobody has a handle any more.
    """

    cls: Any
    options: ActorOptions
    arguments: Stored
    home: ExecutionContext
    runtime_env: RuntimeEnv
    held: Reservation | None
    forgotten: deque[Reservation]

    def __post_init__(self) -> None:
        super().__init__()
        self.class_name = self.options.class_name
        self.methods = self.options.methods
        self._restarts = 0
        self._exiting = False
        self._object: Any = None
        self._pending: list[Future[Stored]] = []
        self._make()

    @property
    def actor_id(self) -> str:
        return self.key

    def _make(self) -> None:
        """Make the object; if that fails, the actor is gone and its calls say why."""
        options, cls = self.options, self.cls
        self.renew(self._new_loop() if options.is_async else None)
        self._gates: dict[str | None, Gate] = {}
        if options.is_async:
            self._gates[None] = asyncio.Semaphore(options.max_concurrency)
            for name, limit in options.concurrency_groups.items():
                self._gates[name] = asyncio.Semaphore(limit)

        def make(*args: object, **kwargs: object) -> None:
            self._object = cls(*args, **kwargs)

        async def make_async(*args: object, **kwargs: object) -> None:
            self._object = await made(cls, args, kwargs)

        work = self._work("__init__", f"__init__ of actor {self.class_name}")
        work.find = lambda: make_async if options.is_async else make
        [done] = begin(work, perform(work, self.arguments))
        error = done.outcome.exception()
        # One that has exited may have been made again meanwhile, or have ended.
        if error is not None and self.gone is None and self._object is None:
            cause = error.__cause__ or error
            self.end(f"its __init__ raised {type(cause).__name__}: {cause}", cause)

    def _new_loop(self) -> Loop:
        """Return a loop that does not keep the actor, and ends it as a background task exits."""
        leave = weakref.WeakMethod(self.leave)

        def on_exit(error: SystemExit) -> None:
            found = leave()
            if found is not None:
                found(error)

        return Loop(f"dray-actor-{self.class_name}", on_exit)

    def _work(self, name: str, title: str) -> Work:
        return Work(
            title=title,
            find=lambda: method_of(self._object, name),
            host=self,
            here=replace(
                self.home,
                actor_id=self.key,
                actor_name=self.options.name,
                task_id=uuid.uuid4().hex,
                task_name=f"{self.class_name.rpartition('.')[2]}.{name}",
                task_function=f"{self.class_name}.{name}",
                was_restarted=self._restarts > 0,
            ),
            runtime_env=self.runtime_env,
        )

    def bind(self, method: str, options: CallOptions) -> Submit:
        retries = options.max_task_retries
        if retries is None:
            retries = self.options.max_task_retries
        group = options.concurrency_group
        groups = self.options.concurrency_groups
        if group is not None and group not in groups:
            raise no_concurrency_group(f"actor {self.class_name}", group, groups)

        def call(args: Args, kwargs: Kwargs) -> Returned:
            self._pending = [outcome for outcome in self._pending if not outcome.done()]
            limit = self.options.max_pending_calls
            if 0 < limit <= len(self._pending):
                raise PendingCallsLimitExceeded(
                    f"actor {self.class_name} has {len(self._pending)} unfinished calls, and "
                    f"max_pending_calls is {limit}: get some results first"
                )
            work = replace(
                self._work(method, f"method {options.name} of actor {self.class_name}"),
                num_returns=options.num_returns,
                retries=retries,
                retry_on=options.retry_exceptions,
                gate=self._gates.get(group) or contextlib.nullcontext(),
            )
            returned = submit(work, args, kwargs)
            first = returned[0] if isinstance(returned, list) else returned
            if isinstance(first, InlineRef):
                self._pending.append(first.outcome)
            return returned

        return call

    def exit(self) -> NoReturn:
        """Have the call that runs end with the actor, or the actor with the call."""
        self._exiting = True
        raise ExitActor(0)

    def call_over(self) -> None:
        if self._exiting:
            self.end("it called exit_actor()")

    def leave(self, error: SystemExit) -> DrayError:
        """End the actor, as one of its calls exits; return that call's error.

        An exit that is not intended is a crash, after which it may be made again.
        """
        if isinstance(error, ExitActor):
            self.end("it called exit_actor()")
        elif is_intended(error):
            self.end("it called sys.exit(0)")
        else:
            status = exit_status(error)
            self.restart(f"its code exited with status {status}")
            if self.gone is None:
                return ActorUnavailableError(
                    status,
                    details=f"a call of actor {self.class_name} exited with status {status}; the "
                    "actor was restarted",
                )
        assert self.gone is not None
        return self.gone

    def end(self, why: str, cause: BaseException | None = None) -> None:
        """End it; calls that are not done, and all later ones, raise."""
        if self.gone is not None:
            return
        self.gone = ActorDiedError(
            None, details=f"actor {self.class_name} is gone: {why}", actor_id=self.actor_id
        )
        self.gone.__cause__ = cause
        self._object = None
        self.renew()
        if self.held is not None:
            self.held.release()

    def restart(self, why: str = "it was killed") -> None:
        """End it and make it again, if it may be; else end it for good."""
        if self.gone is not None or self._restarts == self.options.max_restarts:
            self.end(why)
            return
        self._restarts += 1
        self._object = None
        self._make()

    def describe(self) -> ActorStatus:
        return ActorStatus(
            actor_id=self.actor_id,
            class_name=self.class_name,
            name=self.options.name,
            state="alive",
            pid=os.getpid(),
            node_id=self.home.node_id,
            resources=dict(self.options.resources),
            calls_running=sum(not outcome.done() for outcome in self._pending),
            namespace=self.options.namespace,
            detached=self.options.detached,
            restarts=self._restarts,
        )

    def __del__(self) -> None:
        """End with the last handle; the garbage collector may be amid the ledger: take no lock."""
        if getattr(self, "gone", True) is None:
            if self.held is not None:
                self.forgotten.append(self.held)
            if self.loop is not None:
                self.loop.stop()
