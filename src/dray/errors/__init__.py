"""All errors that dray raises, as one tree.

DrayError
├── ConfigError (ValueError)            the request is malformed
│   ├── ArgumentTypeError (TypeError)   an argument has a type that makes no sense
│   ├── AlreadyInitializedError (RuntimeError) dray.init() was called twice
│   ├── NameTakenError                  another actor or placement group has the name already
│   ├── NoSuchCheckpointError (RuntimeError) a run does not have the requested checkpoint
│   ├── NoSuchDatasetError (KeyError)   a trainer has no dataset of that name
│   └── NoSuchFileError (StorageError, FileNotFoundError) there is no file to read rows from
├── InfeasibleError                     the request is well-formed, but no machine here can meet it
├── MissingDependencyError (ImportError) an optional package is not installed
├── AbsentError                         a name, module or argument that dray does not have
│   ├── AbsentNameError (AttributeError)
│   │   └── DeprecatedNameError (DeprecationWarning)      deprecated in Ray as well
│   ├── AbsentImportError (ImportError)
│   │   └── AbsentModuleError (ModuleNotFoundError)
│   └── AbsentArgumentError (ConfigError, TypeError)
│       └── DeprecatedArgumentError (DeprecationWarning)  deprecated in Ray as well
├── SerializationError (TypeError)      an object cannot be sent between processes
├── NotInTrainingError (RuntimeError)   a function of the train loop was called outside a worker
├── StorageError (OSError)              a run directory or checkpoint cannot be written or read
│   └── NoRunError (RuntimeError)       there is no run in a directory
├── GetTimeoutError (TimeoutError)      a result was not available within the timeout
├── TaskCancelledError                  a call was cancelled before it ended
├── TaskError                           a task or an actor's method raised; also of the user's type
├── DataFunctionError                   a function of a dataset raised; also of its exception's type
├── CollectiveError (RuntimeError)      a rank of a group of actors did not take part
├── PendingCallsLimitExceeded           an actor has reached its max_pending_calls
├── EngineError                         the engine itself has failed
│   ├── WorkerDiedError                 a worker's process ended before its work did
│   │   ├── OutOfMemoryError            because it was killed when memory was full
│   │   ├── NodeDiedError               because its node did, or can no longer be reached
│   │   └── ActorError                  an actor's process ended before a call of it did
│   │       ├── ActorDiedError          the actor is gone
│   │       └── ActorUnavailableError   it is being restarted, the call is lost
│   ├── GroupRemovedError               a task's or actor's placement group was removed
│   ├── RuntimeEnvSetupError            a worker's runtime environment cannot be set up
│   ├── ObjectLostError                 an object is lost with the process or node that held it
│   ├── ObjectStoreFullError            memory and disk have no space for an object
│   └── ClusterUnreachableError (ConnectionError)  no cluster at the address, or an unfit one
└── TrainingFailedError                 fit() has failed
    ├── StartTimeoutError (TimeoutError) because the resources did not become free in time
    ├── WorkerGroupError                because of a worker: the user's function or its process
    ├── PreemptionError                 because nodes were preempted more often than allowed
    └── ControllerError                 because of the driver: a callback, the storage, dray itself
"""

from __future__ import annotations

import functools
import re
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dray.errors.base import DrayError as DrayError
from dray.errors.base import RemoteTraceback as RemoteTraceback
from dray.errors.base import mixed_with as mixed_with
from dray.errors.base import text_of as text_of
from dray.errors.storage import NoRunError as NoRunError
from dray.errors.storage import StorageError as StorageError
from dray.errors.task import TaskError as TaskError
from dray.errors.task import raised_in_task as raised_in_task
from dray.errors.training import ControllerError as ControllerError
from dray.errors.training import PreemptionError as PreemptionError
from dray.errors.training import StartTimeoutError as StartTimeoutError
from dray.errors.training import TrainingFailedError as TrainingFailedError
from dray.errors.training import WorkerGroupError as WorkerGroupError
from dray.errors.training import as_instance_of_cause as as_instance_of_cause
from dray.errors.training import raised_in_driver as raised_in_driver

if TYPE_CHECKING:
    from dray.errors.shortfall import Shortfall

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class ConfigError(DrayError, ValueError):
    """A request is malformed; the message names the argument and what is allowed."""


class ArgumentTypeError(ConfigError, TypeError):
    """An argument has a type that makes no sense, or a call does not match the signature."""


class AlreadyInitializedError(ConfigError, RuntimeError):
    """`dray.init()` was called while an engine runs."""


class NameTakenError(ConfigError):
    """An actor or a placement group cannot be created because its name is in use."""


class NoSuchCheckpointError(ConfigError, RuntimeError):
    """A run does not have the requested checkpoint."""


class NoSuchDatasetError(ConfigError, KeyError):
    """A trainer has no dataset of that name."""

    __str__ = Exception.__str__  # KeyError's own returns a repr


class NoSuchFileError(ConfigError, StorageError, FileNotFoundError):
    """There is no file to read rows from."""


class InfeasibleError(DrayError):
    """No node can ever offer the requested resources.

    Attributes:
        asked: The resources of the whole request.
        available: The resources of the nearest node.
        shortfall: The resources that the nodes lack, if dray itself has found the lack.
    """

    def __init__(
        self,
        message: str,
        *,
        asked: Mapping[str, float],
        available: Mapping[str, float],
        shortfall: Shortfall | None = None,
    ) -> None:
        super().__init__(message)
        self.asked = dict(asked)
        self.available = dict(available)
        self.shortfall = shortfall

    @classmethod
    def of(cls, shortfall: Shortfall) -> InfeasibleError:
        """Return the error of a shortfall, with advice for tasks, actors and placement groups."""
        text, asked = shortfall.sentence(), shortfall.asked
        return cls(text, asked=asked, available=shortfall.available, shortfall=shortfall)

    def __reduce__(self) -> tuple[object, ...]:
        given = {name: getattr(self, name) for name in ("asked", "available", "shortfall")}
        return (functools.partial(type(self), **given), self.args)


class MissingDependencyError(DrayError, ImportError):
    """An optional package is needed and not installed.

    Attributes:
        package: Name of the package.
        requirement: Name of the package for pip.
        instead: An alternative without the package, or "".
    """

    def __init__(self, package: str, requirement: str, instead: str = "") -> None:
        super().__init__(
            f"{package} is not installed, and this needs it. Install it with: "
            f"pip install {shlex.quote(requirement)}" + (f"; {instead}" if instead else "")
        )
        self.package = package
        self.requirement = requirement
        self.instead = instead

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.package, self.requirement, self.instead))


class AbsentError(DrayError):
    """dray does not have a name that the program uses; the message says what to use instead.

    Attributes:
        owner: The module, class or function that does not have the name.
        absent: The name.
    """

    def __init__(self, message: str, *, owner: str, absent: str) -> None:
        super().__init__(message)
        self.owner = owner
        self.absent = absent

    def __reduce__(self) -> tuple[object, ...]:
        rebuild = functools.partial(type(self), owner=self.owner, absent=self.absent)
        return (rebuild, (str(self),))


class AbsentNameError(AbsentError, AttributeError):
    """A module or class has no such attribute."""


class DeprecatedNameError(AbsentNameError, DeprecationWarning):
    """A class has no such attribute, which is deprecated in Ray as well."""


class AbsentImportError(AbsentError, ImportError):
    """A name cannot be imported from a module of dray."""


class AbsentModuleError(AbsentImportError, ModuleNotFoundError):
    """dray has no such module."""


class AbsentArgumentError(AbsentError, ConfigError, TypeError):
    """A function or class does not take such an argument."""


class DeprecatedArgumentError(AbsentArgumentError, DeprecationWarning):
    """A function or class does not take such an argument, which is deprecated in Ray as well."""


class SerializationError(DrayError, TypeError):
    """An object cannot be sent to or from a worker process."""


class NotInTrainingError(DrayError, RuntimeError):
    """A function that works only inside a train function was called elsewhere."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}() was called outside a train function. It works only inside the function "
            "that a trainer runs: call it there, or guard it in code that runs in both places."
        )
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.name,))


class EngineError(DrayError):
    """The engine that runs the workers has failed."""


class WorkerDiedError(EngineError):
    """A worker's process has ended before its work was done.

    Attributes:
        exitcode: The exit status; a negative value is the number of the signal that killed the
            process; None if the engine does not know it.
        out_of_memory: Whether the process was killed because memory was full.
        details: Details from the engine.
    """

    def __init__(
        self, exitcode: int | None, *, out_of_memory: bool = False, details: str = ""
    ) -> None:
        text = details or _describe_exit(exitcode, out_of_memory=out_of_memory)
        super().__init__(text)
        self.exitcode = exitcode
        self.out_of_memory = out_of_memory
        self.details = details

    def __reduce__(self) -> tuple[Callable[..., WorkerDiedError], tuple[object, ...]]:
        rebuild = functools.partial(
            type(self), out_of_memory=self.out_of_memory, details=self.details
        )
        return (rebuild, (self.exitcode,))


class OutOfMemoryError(WorkerDiedError):
    """A worker's process was killed because memory was full."""


class NodeDiedError(WorkerDiedError):
    """A worker is lost because its node has died, or can no longer be reached."""


class ActorError(WorkerDiedError):
    """A call of an actor is lost because the actor's process has ended.

    Attributes:
        actor_id: Id of the actor, or None.
        actor_init_failed: Whether the actor's `__init__` raised.
        preempted: Whether the actor's node was preempted.
    """

    preempted = False

    def __init__(
        self,
        exitcode: int | None,
        *,
        out_of_memory: bool = False,
        details: str = "",
        actor_id: str | None = None,
        actor_init_failed: bool = False,
    ) -> None:
        super().__init__(exitcode, out_of_memory=out_of_memory, details=details)
        self.actor_id = actor_id
        self.actor_init_failed = actor_init_failed

    @property
    def error_msg(self) -> str:
        """The message of the error."""
        return str(self)

    def __reduce__(self) -> tuple[Callable[..., WorkerDiedError], tuple[object, ...]]:
        rebuild, given = super().__reduce__()
        more = {"actor_id": self.actor_id, "actor_init_failed": self.actor_init_failed}
        return (functools.partial(rebuild, **more), given)


class ActorDiedError(ActorError):
    """An actor has ended for good: it was killed, it crashed, or its `__init__` raised."""


class ActorUnavailableError(ActorError):
    """An actor's process died during a call; the actor is being restarted."""


class GroupRemovedError(EngineError):
    """A task or actor has ended because its placement group was removed."""


class RuntimeEnvSetupError(EngineError):
    """A worker's runtime environment cannot be set up."""


class ObjectLostError(EngineError):
    """An object is lost because the process or the node that held it has ended."""


class ObjectStoreFullError(EngineError):
    """Memory and disk have no space for an object."""


class ClusterUnreachableError(EngineError, ConnectionError):
    """There is no cluster at the address, or the cluster does not fit this program."""


class GetTimeoutError(DrayError, TimeoutError):
    """A result was not available within the timeout."""


class TaskCancelledError(DrayError):
    """A call was cancelled before it ended."""


class DataFunctionError(DrayError):
    """A function that a dataset applies has raised; the message names the rows.

    The error is also an instance of the type of the function's exception, which is its `__cause__`.
    """

    __str__ = Exception.__str__  # KeyError's own returns a repr, and OSError's begins with a number


class CollectiveError(DrayError, RuntimeError):
    """A collective of a group of actors has failed because a rank did not take part.

    Attributes:
        group_name: Name of the group.
        rank: The rank that reports the failure.
    """

    def __init__(self, message: str, *, group_name: str = "", rank: int = -1) -> None:
        super().__init__(message)
        self.group_name = group_name
        self.rank = rank


class PendingCallsLimitExceeded(DrayError):
    """An actor has as many waiting calls as its `max_pending_calls` allows."""


def _describe_exit(exitcode: int | None, *, out_of_memory: bool) -> str:
    if exitcode is None:
        return "its process is gone, and nothing shows why"
    if exitcode >= 0:
        return f"its process exited with status {exitcode} in the middle of its work"
    name = signal_name(-exitcode) or "unknown"
    text = f"its process was killed by signal {-exitcode} ({name})"
    if out_of_memory:
        return (
            f"{text}; the kernel's out-of-memory killer was at work at that time: use less memory"
        )
    hints = {
        "SIGKILL": "somebody or something outside killed it (kill -9, a container's memory limit)",
        "SIGSEGV": "native code touched memory it does not own; its output has the Python stack",
        "SIGABRT": "native code gave up; its output may say why",
        "SIGBUS": "often a full /dev/shm or disk under a memory-mapped file",
    }
    return f"{text}; {hints[name]}" if name in hints else text


def signal_name(number: int) -> str:
    """Return a signal's name; "" if it has none, like most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def shown(value: object) -> str:
    """Return a value's repr for a message, at most 200 characters, even if `__repr__` raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 (a user's code may raise anything)
        return f"<{type(value).__qualname__}, its repr() failed>"
    return text if len(text) <= 200 else f"{text[:197]}..."


def visible(line: str) -> str:
    """Return a line with its control characters escaped, because a name may contain them."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], line)


def join_names(names: Sequence[str]) -> str:
    """Return names as an English list: `a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def shown_url(path: str) -> str:
    """Return a path, or a URL without credentials and query, for messages."""
    if "://" not in path:
        return path
    return re.sub(r"\?.+", "?...", re.sub(r"://[^/?#]*@", "://", path), flags=re.DOTALL)


def describe(error: BaseException) -> str:
    """Return a failure as one line of text."""
    if isinstance(error, SystemExit):
        return f"the train function called sys.exit({error.code!r})"
    if isinstance(error, WorkerDiedError):
        return str(error)
    first_line = text_of(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
