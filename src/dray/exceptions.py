"""The errors of dray, under the names of `ray.exceptions`.

Every name of `ray.exceptions` exists here, so that `except ray.exceptions.X` always works. If its
condition can occur in dray, the name is dray's own error. Otherwise it is a class that is never
raised.
"""

from dray.compat.attributes import attach_getattr, with_absent_members
from dray.errors import (
    ActorDiedError,
    ActorUnavailableError,
    ControllerError,
    DrayError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfMemoryError,
    PendingCallsLimitExceeded,
    PreemptionError,
    RuntimeEnvSetupError,
    TaskCancelledError,
    TrainingFailedError,
    WorkerGroupError,
)
from dray.errors import ActorError as RayActorError
from dray.errors import ClusterUnreachableError as AuthenticationError
from dray.errors import DataFunctionError as UserCodeException
from dray.errors import DrayError as RayError
from dray.errors import DrayError as RayTrainError
from dray.errors import EngineError as RaySystemError
from dray.errors import EngineError as RpcError
from dray.errors import GroupRemovedError as ActorPlacementGroupRemoved
from dray.errors import GroupRemovedError as TaskPlacementGroupRemoved
from dray.errors import InfeasibleError as ActorUnschedulableError
from dray.errors import InfeasibleError as TaskUnschedulableError
from dray.errors import NameTakenError as ActorAlreadyExistsError
from dray.errors import NodeDiedError as LocalRayletDiedError
from dray.errors import ObjectLostError as ObjectFetchTimedOutError
from dray.errors import ObjectLostError as ObjectFreedError
from dray.errors import ObjectLostError as ObjectReconstructionFailedError
from dray.errors import ObjectLostError as OwnerDiedError
from dray.errors import ObjectLostError as PlasmaObjectNotAvailable
from dray.errors import ObjectLostError as ReferenceCountingAssertionError
from dray.errors import ObjectStoreFullError as OutOfDiskError
from dray.errors import TaskError as RayTaskError
from dray.errors import WorkerDiedError as WorkerCrashedError

__all__ = [
    "ActorAlreadyExistsError",
    "ActorDiedError",
    "ActorHandleNotFoundError",
    "ActorPlacementGroupRemoved",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "AsyncioActorExit",
    "AuthenticationError",
    "ControllerError",
    "CrossLanguageError",
    "GetTimeoutError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectRefStreamEndOfStreamError",
    "ObjectStoreFullError",
    "OufOfBandObjectRefSerializationException",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "PlasmaObjectNotAvailable",
    "PreemptionError",
    "RayActorError",
    "RayCgraphCapacityExceeded",
    "RayChannelError",
    "RayChannelTimeoutError",
    "RayDirectTransportError",
    "RayError",
    "RaySystemError",
    "RayTaskError",
    "RayTrainError",
    "ReferenceCountingAssertionError",
    "RpcError",
    "RuntimeEnvSetupError",
    "StreamingGeneratorReplayInconsistentError",
    "TaskCancelledError",
    "TaskPlacementGroupRemoved",
    "TaskUnschedulableError",
    "TrainingFailedError",
    "UnserializableException",
    "UserCodeException",
    "WorkerCrashedError",
    "WorkerGroupError",
]


class ActorHandleNotFoundError(DrayError):
    """Never raised: a handle of another session raises `ConfigError`."""


class AsyncioActorExit(DrayError):
    """Never raised: `exit_actor()` ends an async actor without this error."""


class CrossLanguageError(DrayError):
    """Never raised: all tasks and actors are written in Python."""


class ObjectRefStreamEndOfStreamError(DrayError):
    """Never raised: a generator of references ends like any iterator."""


class OufOfBandObjectRefSerializationException(DrayError):
    """Never raised: any code may pickle references."""


class RayChannelError(DrayError):
    """Never raised: there are no channels of compiled graphs."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Never raised: there are no channels of compiled graphs."""


class RayCgraphCapacityExceeded(DrayError):
    """Never raised: there are no compiled graphs."""


class RayDirectTransportError(DrayError):
    """Never raised: tensors are sent like all other values."""


class StreamingGeneratorReplayInconsistentError(DrayError):
    """Never raised: the items of a generator are not computed again."""


class UnserializableException(DrayError):
    """Never raised: an error that cannot be unpickled becomes a `TaskError` with its text."""


attach_getattr(__name__)
with_absent_members(DrayError)
with_absent_members(RayActorError)
