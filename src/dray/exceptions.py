"""The errors of dray, under the names that users of Ray catch."""

from dray.answers import answer_for
from dray.errors import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    PendingCallsLimitExceeded,
    RuntimeEnvSetupError,
    TaskCancelledError,
)
from dray.errors import ActorError as RayActorError
from dray.errors import DrayError as RayError
from dray.errors import InfeasibleError as TaskUnschedulableError
from dray.errors import TaskError as RayTaskError
from dray.errors import WorkerDiedError as WorkerCrashedError

__all__ = [
    "ActorDiedError",
    "ActorUnavailableError",
    "GetTimeoutError",
    "NodeDiedError",
    "ObjectLostError",
    "ObjectStoreFullError",
    "PendingCallsLimitExceeded",
    "RayActorError",
    "RayError",
    "RayTaskError",
    "RuntimeEnvSetupError",
    "TaskCancelledError",
    "TaskUnschedulableError",
    "WorkerCrashedError",
]

answer_for(__name__)
