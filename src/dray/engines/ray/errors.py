"""Ray's errors as errors of dray, by one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ray.exceptions import RayError, RayTaskError

from dray.engines.rpc import wire
from dray.errors import (
    ActorDiedError,
    ActorError,
    ActorUnavailableError,
    ClusterUnreachableError,
    ConfigError,
    DrayError,
    EngineError,
    GetTimeoutError,
    GroupRemovedError,
    InfeasibleError,
    NameTakenError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfMemoryError,
    PendingCallsLimitExceeded,
    RemoteTraceback,
    RuntimeEnvSetupError,
    SerializationError,
    TaskCancelledError,
    WorkerDiedError,
    raised_in_task,
)

Translator = Callable[[BaseException, str], DrayError]


def _as(kind: Callable[[str], DrayError]) -> Translator:
    return lambda error, text: kind(text)


def _died_as(kind: type[WorkerDiedError]) -> Translator:
    return lambda error, text: kind(None, details=text)


def _out_of_memory(error: BaseException, text: str) -> DrayError:
    return OutOfMemoryError(None, out_of_memory=True, details=text)


def _infeasible(error: BaseException, text: str) -> DrayError:
    if "placement group was removed" in text:
        return _ended_with_group()
    return InfeasibleError(text, asked={}, available={})


def _no_runtime_env(error: BaseException, text: str) -> DrayError:
    reason = " ".join(text.removeprefix("Failed to set up runtime environment.").split())
    reason = reason or "Ray does not say why; see the runtime_env_setup logs of the node"
    return RuntimeEnvSetupError(f"its runtime environment cannot be made: {reason}")


_CRASH = "worker process has died"
_OFTEN = "often because of kill -9, a lack of memory, or a crash in native code"
ended_with_group: set[str] = set()  # the ids of actors that were killed with their placement group


def is_crash(error: BaseException) -> bool:
    """Return whether Ray says that a worker's process ended on its own."""
    return _CRASH in str(error)


def _actor_died(error: BaseException, text: str) -> DrayError:
    """Ray tells the reasons for an actor's death apart by its text alone."""
    if getattr(error, "actor_init_failed", False):
        return _task_error(error, text)
    if "its node has died" in text or getattr(error, "preempted", False):
        return NodeDiedError(None, details="its node is gone")
    if "runtime env failed" in text:
        return _no_runtime_env(error, text)
    if "exit_actor() is called" in text or "exits by an user request" in text:
        return ActorDiedError(None, details="it called exit_actor() or sys.exit(0)")
    of_group = getattr(error, "actor_id", None) in ended_with_group
    if of_group or "its placement group was removed" in text:
        return _ended_with_group()
    if _CRASH in text and "killed by `ray.kill`" not in text:
        detail = text.partition("Worker exit detail: ")[2].partition(". Some common")[0]
        return ActorDiedError(
            None,
            details=f"its process ended on its own (Ray says: {detail or 'nothing more'}); "
            f"{_OFTEN}; see the end of its log",
        )
    return ActorDiedError(None, details=text.splitlines()[-1])


def _ended_with_group() -> DrayError:
    return ActorDiedError(None, details="its placement group was removed")


def _task_error(error: BaseException, text: str) -> DrayError:
    """An exception of code that ran in a worker, here dray's own before the user's begins."""
    translated = EngineError(f"a worker could not start: {text.strip().splitlines()[-1]}")
    translated.__cause__ = RemoteTraceback(text)
    return translated


# Error of dray's <- Ray's, by name, since not every release of Ray has all of them. A test fails
# when one is missing.
_BY_ERROR: Sequence[tuple[Translator, str]] = (
    (_as(EngineError), "RayError RaySystemError RpcError CrossLanguageError RayChannelError"),
    (_as(EngineError), "RayCgraphCapacityExceeded RayAdagCapacityExceeded RayDirectTransportError"),
    (_as(EngineError), "ObjectRefStreamEndOfStreamError StreamingGeneratorReplayInconsistentError"),
    (_died_as(NodeDiedError), "LocalRayletDiedError NodeDiedError ActorUnavailableError"),
    (_died_as(WorkerDiedError), "WorkerCrashedError AsyncioActorExit"),
    (_actor_died, "RayActorError ActorDiedError"),
    (_out_of_memory, "OutOfMemoryError"),
    (_task_error, "RayTaskError UserCodeException"),
    (_as(SerializationError), "UnserializableException OufOfBandObjectRefSerializationException"),
    (_no_runtime_env, "RuntimeEnvSetupError"),
    (_as(ClusterUnreachableError), "AuthenticationError"),
    (_as(TaskCancelledError), "TaskCancelledError"),
    (_as(GetTimeoutError), "GetTimeoutError RayChannelTimeoutError"),
    (_as(PendingCallsLimitExceeded), "PendingCallsLimitExceeded"),
    (_as(GroupRemovedError), "TaskPlacementGroupRemoved ActorPlacementGroupRemoved"),
    (_infeasible, "TaskUnschedulableError ActorUnschedulableError"),
    (_as(ObjectLostError), "ObjectLostError ObjectFetchTimedOutError ObjectFreedError"),
    (_as(ObjectLostError), "OwnerDiedError PlasmaObjectNotAvailable"),
    (_as(ObjectLostError), "ReferenceCountingAssertionError ObjectReconstructionFailedError"),
    (_as(ObjectLostError), "ObjectReconstructionFailedMaxAttemptsExceededError"),
    (_as(ObjectLostError), "ObjectReconstructionFailedLineageEvictedError"),
    (_as(ObjectStoreFullError), "ObjectStoreFullError OutOfDiskError"),
    (_as(NameTakenError), "ActorAlreadyExistsError"),
    (_as(ConfigError), "ActorHandleNotFoundError"),
)
TABLE: dict[str, Translator] = {
    name: translator for translator, names in _BY_ERROR for name in names.split()
}


def translate(error: BaseException, table: Mapping[str, Translator] = TABLE) -> DrayError:
    """Return the error of dray's that stands for one that Ray raised; it is the cause.

    Args:
        error: Ray's exception; its nearest class in the table decides.
    """
    if isinstance(error, DrayError):
        return error
    names = [kind.__name__ for kind in type(error).__mro__]
    entry = next((table[name] for name in names if name in table), None)
    if entry is None:
        return EngineError(f"Ray failed: {type(error).__name__}: {error}")
    translated = entry(error, _plain(str(error)))
    if translated.__cause__ is None:
        translated.__cause__ = error
    if isinstance(translated, ActorError):
        translated.actor_id = getattr(error, "actor_id", None)
        translated.actor_init_failed = getattr(error, "actor_init_failed", False)
    return translated


def _plain(text: str) -> str:
    """Return a text of Ray's without colours and what only Ray's authors can use."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line for line in text.splitlines() if not re.match(r"\t(class_name|actor_id):", line)]
    return "\n".join(lines).strip()


# The ends of tasks and actors.


def _actor_never_was(error: BaseException, text: str) -> DrayError:
    """The actor of a call is gone; what its `__init__` raised is known as text only."""
    named = re.search(r"\tclass_name: (.+)", str(error))
    name = f"actor {named[1]}: " if named else ""
    if getattr(error, "actor_init_failed", False):
        translated = ActorDiedError(None, details=f"{name}its __init__ raised {_last_line(text)}")
        translated.__cause__ = RemoteTraceback(text)
        return translated
    died = _actor_died(error, text)
    if isinstance(died, ActorDiedError):
        return ActorDiedError(None, details=name + died.details)
    return died


def _task_crashed(error: BaseException, text: str) -> DrayError:
    """Ray tells which task it was, and how its process ended, in its own output alone."""
    why = (
        f"its process ended on its own in the middle of its work, {_OFTEN} (Ray gives no details "
        "here)"
    )
    return WorkerDiedError(None, details=f"{why}; set max_retries to have the task run again")


def _cancelled(error: BaseException, text: str) -> DrayError:
    return TaskCancelledError(text or "the task was cancelled")


def _cannot_be_rebuilt(error: BaseException, text: str) -> DrayError:
    """Return an error in place of one that cannot be rebuilt in this process."""
    trace = _ORIGINAL.split(text, maxsplit=1)[-1].partition("\ntraceback: Traceback")[0].strip()
    return _raised(RuntimeError(f"{_last_line(trace)} (cannot be rebuilt here)"), trace)


def _system_error(error: BaseException, text: str) -> DrayError:
    """Until Ray 2.50 or so, what cannot be rebuilt has no type of its own."""
    return _cannot_be_rebuilt(error, text) if _ORIGINAL.search(text) else EngineError(text)


_ORIGINAL = re.compile(r"Original exception(?: \(string repr\))?:")
# Errors of tasks and actors that differ from those of a run's workers.
_RESULTS: dict[str, Translator] = {
    **TABLE,
    "RayActorError": _actor_never_was,
    "ActorDiedError": _actor_never_was,
    "ActorUnavailableError": _died_as(ActorUnavailableError),
    "WorkerCrashedError": _task_crashed,
    "TaskCancelledError": _cancelled,
    "UnserializableException": _cannot_be_rebuilt,
    "RaySystemError": _system_error,
}

_HEADER = re.compile(r"ray::(.+?)\(\) \(pid=(\d+), ip=([^,)\s]+)(, actor_id=)?")
_PICKLER = "/ray/cloudpickle/"
_OF_ARGUMENT = "At least one of the input arguments for this task could not be computed:"


def result_error(error: BaseException) -> DrayError:
    """Return what getting a value raises, for what Ray raises.

    Args:
        error: An error of Ray's; the one that stands for a task's is also of the user's type.
    """
    if isinstance(error, RayTaskError):
        return _raised(error.cause, _plain(str(error)))
    return translate(error, _RESULTS)


def raise_result(translated: DrayError, error: BaseException) -> NoReturn:
    """Raise the error of dray's that stands for one of Ray's."""
    # An error that a frame of its own traceback holds would keep all its callers' values alive:
    # Ray's is held so in `ray.get`, and this one would be held here.
    error.__traceback__ = None
    try:
        raise translated from translated.__cause__
    finally:
        del translated, error


def _raised(cause: BaseException, text: str) -> DrayError:
    """Return the error of a task that raised.

    Args:
        text: Its traceback in Ray's form: a line with the task and its process heads it.
    """
    _, of_argument, below = text.rpartition(_OF_ARGUMENT)
    if of_argument:  # the task did not run; what its argument was to come from is told of below
        if isinstance(cause, RayError):
            return result_error(cause)
        found = _HEADER.search(below)
        text = below[found.start() :] if found else below.strip()
    if isinstance(cause, RayError):
        cause = _plain_cause(cause, text)
    is_of_pickler = _PICKLER in text.partition('  File "')[2].partition("\n")[0]
    if is_of_pickler and not isinstance(cause, TaskCancelledError):
        # Nothing of the user's stands above the pickler: the task itself has ended well.
        cause = SerializationError(f"what it returned cannot be pickled: {cause}")
    return raised_in_task(cause, _where(text), text)


def _plain_cause(cause: RayError, text: str) -> BaseException:
    """Return what an error of Ray's, raised in a task, is in dray's tree."""
    if type(cause) is RayError:  # Ray puts it in the place of one that does not pickle
        return RuntimeError(_last_line(text))
    return result_error(cause)


def _where(text: str) -> str:
    """Return which task raised: the last one, since what it was raised from stands above it."""
    found = _HEADER.findall(text)
    if not found:
        return "a task"
    name, pid, address, of_actor = found[-1]
    return f"{'actor method' if of_actor else 'task'} {name} (pid={pid}, ip={address})"


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


# Refusals at the call.

_TAKEN = ("is already taken", "' already exists")
_IN_NO_BUNDLE = "into any bundles"


def refused(
    error: Exception,
    what: str,
    subject: Any = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> BaseException:
    """Return what to raise when Ray does not take a task, an actor, a call or a value.

    Args:
        what: Name in messages of what it does not take.
        subject: The function or class that was to be sent.
    """
    if isinstance(error, DrayError):
        return error
    if any(text in str(error) for text in _TAKEN):
        return NameTakenError(
            f"{what} cannot be made: its name is taken. Give it another name, or get the one that "
            "has it (dray.get_actor, or get_if_exists=True; get_placement_group)"
        )
    if isinstance(error, RayError):
        return translate(error)
    if _IN_NO_BUNDLE in str(error):
        return InfeasibleError(f"{what} can never run: {error}", asked={}, available={})
    methods = vars(subject).items() if isinstance(subject, type) else ()
    parts = {f"{name} of {what}": method for name, method in methods if callable(method)}
    parts |= {what: subject, **wire.named_arguments(args, kwargs or {}, what)}
    for name, part in parts.items():
        try:
            wire.dump(part, name)
        except SerializationError as reason:
            return reason
    if "ould not serialize" in str(error):
        return SerializationError(f"{what} cannot be sent to another process: {error}")
    if isinstance(error, ValueError | OverflowError):
        text = str(error).replace("`ray.init`", "`dray.init(runtime_env=...)`")
        return ConfigError(f"Ray refuses {what}: {text}")
    return error
