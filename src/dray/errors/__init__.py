"""Every error that dray raises, as one tree.

DrayError
├── ConfigError (ValueError)            the request is malformed
│   ├── ArgumentTypeError (TypeError)   an argument is not of a kind that could be meant
│   ├── AlreadyInitializedError (RuntimeError) dray.init() was called twice
│   ├── NameTakenError                  another actor or placement group has the name already
│   ├── NoSuchCheckpointError (RuntimeError) it asks for a checkpoint that a run does not have
│   ├── NoSuchDatasetError (KeyError)   it asks for a dataset that a trainer was not given
│   └── NoSuchFileError (StorageError, FileNotFoundError) there is no file to read rows from
├── InfeasibleError                     the request is well-formed, but no machine here can meet it
├── MissingDependencyError (ImportError) an optional package is not installed
├── AbsentError                         a name, module or argument that dray does not have
│   ├── AbsentNameError (AttributeError)
│   │   └── DeprecatedNameError (DeprecationWarning)      Ray is giving it up as well
│   ├── AbsentImportError (ImportError)
│   │   └── AbsentModuleError (ModuleNotFoundError)
│   └── AbsentArgumentError (ConfigError, TypeError)
│       └── DeprecatedArgumentError (DeprecationWarning)  Ray is giving it up as well
├── SerializationError (TypeError)      an object cannot travel between processes
├── NotInTrainingError (RuntimeError)   a function of the train loop was called outside a worker
├── StorageError (OSError)              a run directory or checkpoint cannot be written or read
│   └── NoRunError (RuntimeError)       there is no run in a directory
├── GetTimeoutError (TimeoutError)      a result did not come in time
├── TaskCancelledError                  a call was cancelled before it ended
├── TaskError                           a task or an actor's method raised; also of the user's type
├── DataFunctionError                   a function raised on rows of a dataset; of its type as well
├── CollectiveError (RuntimeError)      a rank of a group of actors did not take part
├── PendingCallsLimitExceeded           an actor has as many waiting calls as it was made for
├── EngineError                         the engine itself broke
│   ├── WorkerDiedError                 a worker's process ended before its work did
│   │   ├── OutOfMemoryError            because it was killed for want of memory
│   │   ├── NodeDiedError               because its node did, or can no longer be reached
│   │   └── ActorError                  an actor's process ended before a call of it did
│   │       ├── ActorDiedError          the actor is gone
│   │       └── ActorUnavailableError   it is being made again, the call is lost
│   ├── GroupRemovedError               a placement group was removed, with what ran in it
│   ├── RuntimeEnvSetupError            a worker's runtime environment cannot be made
│   ├── ObjectLostError                 an object is gone, with the process or node that held it
│   ├── ObjectStoreFullError            there is no room for an object, in memory or on disk
│   └── ClusterUnreachableError (ConnectionError)  no cluster there, or one that does not fit
└── TrainingFailedError                 fit() did not reach its end
    ├── StartTimeoutError (TimeoutError) because the resources did not become free in time
    ├── WorkerGroupError                because of a worker: the user's function or its process
    ├── PreemptionError                 because announced nodes were taken away, once too often
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
    """An argument is not of a kind that could be meant, or a call does not fit its signature."""


class AlreadyInitializedError(ConfigError, RuntimeError):
    """`dray.init()` was called while an engine runs."""


class NameTakenError(ConfigError):
    """An actor or a placement group cannot be made under a name that another one has."""


class NoSuchCheckpointError(ConfigError, RuntimeError):
    """A run has no checkpoint of the kind that was asked for."""


class NoSuchDatasetError(ConfigError, KeyError):
    """A trainer was given no dataset of that name."""

    __str__ = Exception.__str__  # a KeyError's is a repr


class NoSuchFileError(ConfigError, StorageError, FileNotFoundError):
    """There is no file to read rows from."""


class InfeasibleError(DrayError):
    """No node, now or later, can offer what was asked.

    Attributes:
        asked: The resources of the whole request.
        available: The resources of the nearest node.
        shortfall: Resources that the nodes lack, where dray has found that out itself.
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
        """Return the error of a shortfall, in the words of tasks, actors and groups."""
        text, asked = shortfall.sentence(), shortfall.asked
        return cls(text, asked=asked, available=shortfall.available, shortfall=shortfall)

    def __reduce__(self) -> tuple[object, ...]:
        given = {name: getattr(self, name) for name in ("asked", "available", "shortfall")}
        return (functools.partial(type(self), **given), self.args)


class MissingDependencyError(DrayError, ImportError):
    """An optional package is needed and not installed.

    Attributes:
        package: Its name.
        requirement: Name of the package for pip.
        instead: Alternative without it, if there is one.
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
    """dray does not have what is asked for by name; the message says what to use instead.

    Attributes:
        owner: The module, class or function that does not have it.
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
    """A class has no such attribute, and Ray is giving it up as well."""


class AbsentImportError(AbsentError, ImportError):
    """A name cannot be imported from a module of dray."""


class AbsentModuleError(AbsentImportError, ModuleNotFoundError):
    """dray has no such module."""


class AbsentArgumentError(AbsentError, ConfigError, TypeError):
    """A function or class does not take such an argument."""


class DeprecatedArgumentError(AbsentArgumentError, DeprecationWarning):
    """A function or class does not take such an argument, and Ray is giving it up as well."""


class SerializationError(DrayError, TypeError):
    """An object cannot be sent to, or back from, a worker process."""


class NotInTrainingError(DrayError, RuntimeError):
    """A function that belongs inside a train function was called elsewhere."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}() was called outside a train function. It works only inside the function "
            "that a trainer runs: call it there, or guard it in code that runs in both places."
        )
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.name,))


class EngineError(DrayError):
    """The engine that runs the workers broke."""


class WorkerDiedError(EngineError):
    """A worker's process ended before its work did.

    Attributes:
        exitcode: The exit status; negative is the number of the signal that killed it;
            None where the engine cannot know.
        out_of_memory: Whether it was killed for want of memory.
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
    """A worker's process was killed for want of memory."""


class NodeDiedError(WorkerDiedError):
    """A worker is gone because its node is, or can no longer be reached."""


class ActorError(WorkerDiedError):
    """A call of an actor is lost, because its process ended.

    Attributes:
        actor_id: The actor's id, where the engine tells it.
        actor_init_failed: Whether its `__init__` raised.
        preempted: Whether its node was taken away with a warning before.
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
        """The message."""
        return str(self)

    def __reduce__(self) -> tuple[Callable[..., WorkerDiedError], tuple[object, ...]]:
        rebuild, given = super().__reduce__()
        more = {"actor_id": self.actor_id, "actor_init_failed": self.actor_init_failed}
        return (functools.partial(rebuild, **more), given)


class ActorDiedError(ActorError):
    """An actor is gone: killed, crashed, or its `__init__` raised."""


class ActorUnavailableError(ActorError):
    """An actor's process died in the middle of a call; the actor is being made again."""


class GroupRemovedError(EngineError):
    """A task or actor ended because its placement group was removed."""


class RuntimeEnvSetupError(EngineError):
    """A worker's runtime environment cannot be made."""


class ObjectLostError(EngineError):
    """An object is gone, with the process or the node that held it."""


class ObjectStoreFullError(EngineError):
    """There is no room for an object, in memory or on the disk."""


class ClusterUnreachableError(EngineError, ConnectionError):
    """There is no cluster at the address, or it does not fit this program."""


class GetTimeoutError(DrayError, TimeoutError):
    """A result did not come in time."""


class TaskCancelledError(DrayError):
    """A call was cancelled before it ended."""


class DataFunctionError(DrayError):
    """A function that a dataset applies has raised; the message names the rows.

    It is also an instance of what the function raised, and that is its cause.
    """

    __str__ = Exception.__str__  # a KeyError's is a repr, and an OSError's its number


class CollectiveError(DrayError, RuntimeError):
    """A collective of a group of actors failed, since a rank did not take part.

    Attributes:
        group_name: Name of the group.
        rank: The rank that tells of it.
    """

    def __init__(self, message: str, *, group_name: str = "", rank: int = -1) -> None:
        super().__init__(message)
        self.group_name = group_name
        self.rank = rank


class PendingCallsLimitExceeded(DrayError):
    """An actor has as many waiting calls as its `max_pending_calls` allows."""


def _describe_exit(exitcode: int | None, *, out_of_memory: bool) -> str:
    if exitcode is None:
        return "its process is gone, and nothing is left to tell why"
    if exitcode >= 0:
        return f"its process exited with status {exitcode} in the middle of its work"
    name = signal_name(-exitcode) or "unknown"
    text = f"its process was killed by signal {-exitcode} ({name})"
    if out_of_memory:
        return f"{text}; the kernel's out-of-memory killer struck at that time: use less memory"
    hints = {
        "SIGKILL": "somebody or something outside killed it (kill -9, a container's memory limit)",
        "SIGSEGV": "native code touched memory it does not own; its output has the Python stack",
        "SIGABRT": "native code gave up; its output may say why",
        "SIGBUS": "often a full /dev/shm or disk under a memory-mapped file",
    }
    return f"{text}; {hints[name]}" if name in hints else text


def signal_name(number: int) -> str:
    """Return a signal's name; "" if it has none, as most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def shown(value: object) -> str:
    """Return a value as a message shows it; a user's class may fail to say what it is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 (a user's code may raise anything)
        return f"<{type(value).__qualname__}, its repr() failed>"
    return text if len(text) <= 200 else f"{text[:197]}..."


def visible(line: str) -> str:
    """Return a line without control characters, which a name may have."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], line)


def join_names(names: Sequence[str]) -> str:
    """Return names as English: `a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def shown_url(path: str) -> str:
    """Return a path, or a URL without who asks and with which key, for messages."""
    if "://" not in path:
        return path
    return re.sub(r"\?.+", "?...", re.sub(r"://[^/?#]*@", "://", path), flags=re.DOTALL)


def describe(error: BaseException) -> str:
    """Return a failure in one line."""
    if isinstance(error, SystemExit):
        return f"the train function called sys.exit({error.code!r})"
    if isinstance(error, WorkerDiedError):
        return str(error)
    first_line = text_of(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
