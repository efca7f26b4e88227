"""Ray's errors in dray's tree, by one table."""

from __future__ import annotations

import re
from collections.abc import Callable

from dray.errors import (
    ClusterUnreachableError,
    ConfigError,
    DrayError,
    EngineError,
    GetTimeoutError,
    InfeasibleError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    RemoteTraceback,
    RuntimeEnvSetupError,
    SerializationError,
    TaskCancelledError,
    WorkerDiedError,
)

Translator = Callable[[BaseException, str], DrayError]


def _as(kind: Callable[[str], DrayError]) -> Translator:
    return lambda error, text: kind(text)


def _worker_died(error: BaseException, text: str) -> DrayError:
    return WorkerDiedError(None, details=text)


def _node_died(error: BaseException, text: str) -> DrayError:
    return NodeDiedError(None, details=text)


def _out_of_memory(error: BaseException, text: str) -> DrayError:
    return WorkerDiedError(None, out_of_memory=True, details=text)


def _infeasible(error: BaseException, text: str) -> DrayError:
    return InfeasibleError(text, asked={}, available={})


def _no_runtime_env(error: BaseException, text: str) -> DrayError:
    reason = " ".join(text.removeprefix("Failed to set up runtime environment.").split())
    reason = reason or "Ray does not say why; the runtime_env_setup logs of the node do"
    return RuntimeEnvSetupError(f"its runtime environment cannot be made: {reason}")


_CRASH = "worker process has died"


def is_crash(error: BaseException) -> bool:
    """Returns whether Ray says that a worker's process ended by itself."""
    return _CRASH in str(error)


def _actor_died(error: BaseException, text: str) -> DrayError:
    """Ray tells the reasons for an actor's death apart by its text alone."""
    if getattr(error, "actor_init_failed", False):
        return _task_error(error, text)
    if "its node has died" in text or getattr(error, "preempted", False):
        return NodeDiedError(None, details="its node is gone")
    if "runtime env failed" in text:
        return _no_runtime_env(error, text)
    if _CRASH in text:
        detail = text.partition("Worker exit detail: ")[2].partition(". Some common")[0]
        return WorkerDiedError(
            None,
            details=f"its process ended by itself (Ray says: {detail or 'nothing more'}); often by "
            "kill -9, for want of memory, or by a crash in native code: then the log holds its "
            "last words",
        )
    return WorkerDiedError(None, details=text.splitlines()[-1])


def _task_error(error: BaseException, text: str) -> DrayError:
    """An exception of code that ran in a worker, here dray's own before the user's begins."""
    translated = EngineError(f"a worker could not begin: {text.strip().splitlines()[-1]}")
    translated.__cause__ = RemoteTraceback(text)
    return translated


# By name, since not every release of Ray has all of them. A test fails when one is missing.
TABLE: dict[str, Translator] = {
    "RayError": _as(EngineError),
    "RaySystemError": _as(EngineError),
    "RpcError": _as(EngineError),
    "CrossLanguageError": _as(EngineError),
    "LocalRayletDiedError": _node_died,
    "NodeDiedError": _node_died,
    "ActorUnavailableError": _node_died,
    "WorkerCrashedError": _worker_died,
    "RayActorError": _actor_died,
    "ActorDiedError": _actor_died,
    "AsyncioActorExit": _worker_died,
    "OutOfMemoryError": _out_of_memory,
    "RayTaskError": _task_error,
    "UserCodeException": _task_error,
    "UnserializableException": _as(SerializationError),
    "OufOfBandObjectRefSerializationException": _as(SerializationError),
    "RuntimeEnvSetupError": _no_runtime_env,
    "AuthenticationError": _as(ClusterUnreachableError),
    "TaskCancelledError": _as(TaskCancelledError),
    "GetTimeoutError": _as(GetTimeoutError),
    "RayChannelTimeoutError": _as(GetTimeoutError),
    "RayChannelError": _as(EngineError),
    "RayCgraphCapacityExceeded": _as(EngineError),
    "RayDirectTransportError": _as(EngineError),
    "RayAdagCapacityExceeded": _as(EngineError),
    "PendingCallsLimitExceeded": _as(EngineError),
    "ObjectRefStreamEndOfStreamError": _as(EngineError),
    "StreamingGeneratorReplayInconsistentError": _as(EngineError),
    "TaskPlacementGroupRemoved": _as(EngineError),
    "ActorPlacementGroupRemoved": _as(EngineError),
    "TaskUnschedulableError": _infeasible,
    "ActorUnschedulableError": _infeasible,
    "ObjectLostError": _as(ObjectLostError),
    "ObjectFetchTimedOutError": _as(ObjectLostError),
    "ObjectFreedError": _as(ObjectLostError),
    "OwnerDiedError": _as(ObjectLostError),
    "PlasmaObjectNotAvailable": _as(ObjectLostError),
    "ReferenceCountingAssertionError": _as(ObjectLostError),
    "ObjectReconstructionFailedError": _as(ObjectLostError),
    "ObjectReconstructionFailedMaxAttemptsExceededError": _as(ObjectLostError),
    "ObjectReconstructionFailedLineageEvictedError": _as(ObjectLostError),
    "ObjectStoreFullError": _as(ObjectStoreFullError),
    "OutOfDiskError": _as(ObjectStoreFullError),
    "ActorAlreadyExistsError": _as(ConfigError),
    "ActorHandleNotFoundError": _as(ConfigError),
}


def translate(error: BaseException) -> DrayError:
    """Returns the error of dray's that stands for one that Ray raised; it is the cause.

    Args:
        error: What Ray raised; its nearest class in the table decides.
    """
    if isinstance(error, DrayError):
        return error
    names = [kind.__name__ for kind in type(error).__mro__]
    entry = next((TABLE[name] for name in names if name in TABLE), None)
    if entry is None:
        return EngineError(f"Ray failed: {type(error).__name__}: {error}")
    translated = entry(error, _plain(str(error)))
    if translated.__cause__ is None:
        translated.__cause__ = error
    return translated


def _plain(text: str) -> str:
    """Returns a text of Ray's without colours and what only Ray's authors can use."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line for line in text.splitlines() if not re.match(r"\t(class_name|actor_id):", line)]
    return "\n".join(lines).strip()
