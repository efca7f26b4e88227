"""The worker's side of an actor: its calls on the main thread, its signals on a control thread."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import inspect
import os
import pickle
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from dray import interrupts, session
from dray.engines.rpc import lifeline, wire
from dray.engines.rpc.sockets import socket_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from dray.engines.runtime import Args, Function, Kwargs


class ActorHost:
    """Serves one actor until the driver says stop or goes away.

    Args:
        enter_environment: Puts this process where the first message says.
        after_steps: Called after each call, and with each message, as a step has ended.
        doorbell: Wakes the driver when it is written to; without one, every message does.
    """

    def __init__(
        self,
        connection: Connection,
        enter_environment: Callable[[wire.Begin], None],
        after_steps: Callable[[], object] = lambda: None,
        doorbell: socket.socket | None = None,
    ) -> None:
        self._connection = connection
        self._doorbell = doorbell
        # The same connection, for what must not wait there without having rung.
        self._sock = None if doorbell is None else socket_of(os.dup(connection.fileno()))
        self._unrung = False  # whether the driver may be asleep with something to read
        self._enter_environment = enter_environment
        self._sending = threading.Lock()
        self._calls: queue.SimpleQueue[wire.Call | None] = queue.SimpleQueue()
        self._actor: Any = None
        self._made = threading.Event()
        self._over = False
        self._pid = os.getpid()
        self._after_steps = after_steps

    def serve(self) -> None:
        """Make the actor, then run its calls in the order they come, until it is stopped."""
        begin = self._connection.recv()
        self._enter_environment(begin)
        threading.Thread(target=self._control, name="dray-control", daemon=True).start()
        self._actor = wire.load(begin.factory)(self.post)
        self._made.set()
        while (call := self._calls.get()) is not None:
            self._send(self._answer(call))
            self._after_steps()
        close_actor(self._actor)
        self._over = True
        self._send(wire.Left())

    def post(self, message: object, *, quiet: bool = False) -> None:
        """Push a message to the actor's mailbox; it is of plain values and importable classes.

        Args:
            quiet: Whether nobody need be woken for it, see `base.Post`.
        """
        if not quiet:
            self._send(wire.Message(message))
        elif type(message) is bytes:
            self._send_quietly(wire.QUIET + message)
        else:
            self._send_quietly(wire.QUIET_PICKLED + pickle.dumps(message, protocol=5))
        self._after_steps()

    def _answer(self, call: wire.Call) -> wire.Answer:
        try:
            method, args = wire.load(call.payload)
            with ExitForkedChildren():
                value = getattr(self._actor, method)(*args)
            return wire.Answer(call.number, "returned", wire.dump(value, "the return value"))
        except BaseException as error:  # noqa: BLE001 (all of it belongs to the caller)
            return wire.Answer(call.number, "raised", wire.dump_error(error, users_part(error)))

    def _send(self, message: wire.ToDriver) -> None:
        session.refuse_forks(self._pid)
        data = pickle.dumps(message, protocol=5)  # faster than the connection's own pickler
        with self._sending:
            try:
                self._connection.send_bytes(data)
            except OSError:  # the driver is gone, and with it the reason to live
                lifeline.end_with_family()
            if self._unrung:
                self._ring()

    def _send_quietly(self, data: bytes) -> None:
        """Leave a message for the driver; have it read if there is no room."""
        if os.getpid() != self._pid:
            session.refuse_forks(self._pid)
        sock = self._sock
        with self._sending:
            try:
                if sock is None:
                    self._connection.send_bytes(data)
                    return
                size = len(data)
                frame = wire.LENGTH.pack(size) + data if size <= wire.MOST else wire.framed(data)
                try:
                    sent = sock.send(frame, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    sent = 0
                if sent < len(frame):
                    self._ring()
                    sock.sendall(frame[sent:])
                self._unrung = True
            except OSError:  # as above
                lifeline.end_with_family()

    def _ring(self) -> None:
        assert self._doorbell is not None
        self._unrung = False
        with contextlib.suppress(OSError):  # full: it wakes as it is; gone: the connection tells
            self._doorbell.send(b"\0")

    def _control(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, wire.Call):
                    self._calls.put(message)
                elif isinstance(message, wire.Signal):
                    self._made.wait()
                    method, args = wire.load(message.payload)
                    getattr(self._actor, method)(*args)
                elif isinstance(message, wire.Stop):
                    self._calls.put(None)
        except (EOFError, OSError):
            if not self._over:
                lifeline.end_with_family()


def close_actor(actor: Any) -> None:
    """Let an actor that has a `close` method free what it holds."""
    close = getattr(actor, "close", None)
    if close is not None:
        close()


async def made(kind: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return an object of an actor's class, whose `__init__` may be async."""
    if not inspect.iscoroutinefunction(kind.__init__):
        return kind(*args, **kwargs)
    actor = kind.__new__(kind, *args, **kwargs)
    await actor.__init__(*args, **kwargs)
    return actor


def method_of(actor: Any, name: str) -> Any:
    """Return a method as the actor's class has it, which an attribute of that name may hide."""
    if name in _OF_EVERY_ACTOR:
        return functools.partial(_OF_EVERY_ACTOR[name], actor)
    if name in getattr(actor, "__dict__", ()):
        kind = type(actor)
        for part in kind.__mro__:
            if name in part.__dict__:
                found = part.__dict__[name]
                return found.__get__(actor, kind) if hasattr(found, "__get__") else found
    return getattr(actor, name)


def _call(actor: Any, function: Function, *args: object, **kwargs: Any) -> Any:
    return function(actor, *args, **kwargs)


# The methods that `runtime.OF_EVERY_ACTOR` names.
_OF_EVERY_ACTOR: Mapping[str, Function] = {
    "__ray_ready__": lambda actor: True,
    "__ray_call__": _call,
    "__ray_terminate__": lambda actor: session.current_runtime().exit_actor(),
}


def import_quietly(modules: Iterable[str]) -> None:
    """Import what will be needed; what fails to import fails again, in sight, where it is used."""
    for module in modules:
        before = set(sys.modules)
        try:
            importlib.import_module(module)
        except Exception:  # noqa: BLE001 (it fails again, in sight)
            _forget_parts(sys.modules.keys() - before)


def _forget_parts(new: Iterable[str]) -> None:
    """Forget modules whose package has failed to import: the next one would not know of them."""
    for name in sorted(new):
        package = name.rpartition(".")[0]
        if package and package not in sys.modules:
            del sys.modules[name]


def users_part(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames of dray that lead to the user's function."""
    here = os.path.realpath(__file__).rpartition("engines")[0]
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code.co_filename.startswith(here):
        step = step.tb_next
    return step


def enter_environment(begin: wire.Begin) -> None:
    """Put this process where the driver is: environment, directory, import path."""
    if begin.enter is not None:
        begin.enter(begin)
    else:
        os.environ.clear()
        os.environ.update(begin.environment)
        if begin.cwd:
            os.chdir(begin.cwd)
        sys.path[:] = begin.path
    _reset_inherited_state()


def set_variables(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set environment variables, and unset None ones; return what they were before."""
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


def _reset_inherited_state() -> None:
    """Make a fork start as a fresh process would, where libraries keep state of their own.

    Python seeds `random` anew after a fork on its own.
    """
    if "numpy.random" in sys.modules:  # later, it takes its seed from the system
        sys.modules["numpy.random"].seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)


class ExitForkedChildren:
    """Around a user's function: what it has forked off this process and let return ends there.

    For a fork has all that the worker has, and would go on as that worker.
    """

    __slots__ = ("_pid",)

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            _leave_fork(error)


def exit_status(error: SystemExit) -> int:
    """Return the status with which a script ends that raises this; say on stderr what it says."""
    status: Any = error.code or 0
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        return 1
    return status & 0xFF


def is_intended(error: SystemExit) -> bool:
    """Return whether an actor that raises this has ended on purpose.

    As on Ray, only `sys.exit(0)` says so; `sys.exit()` does not.
    """
    return error.code is not None and error.code == 0


def _leave_fork(error: BaseException | None) -> None:
    status = 0
    if isinstance(error, SystemExit):
        status = exit_status(error)
    elif error is not None:
        sys.excepthook(type(error), error, users_part(error))
        status = 1
    run_to_end(lambda: _leave(status))


def _leave(status: int) -> None:
    """End this process as a script would end, without the slow teardown of a forked heap."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if "multiprocessing.util" in sys.modules:  # joins and ends data loaders and pools
        _disown_siblings()
        sys.modules["multiprocessing.util"]._exit_function()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _end_loky() -> None:
    """Let joblib's processes, which may still be starting, end before what they need goes."""
    for name in ("joblib.externals.loky.process_executor", "loky.process_executor"):
        if name in sys.modules:
            sys.modules[name]._python_exit()


def _disown_siblings() -> None:
    """Have a fork not end the data loaders of the process that it was forked off."""
    children = sys.modules["multiprocessing.process"]._children
    children -= {child for child in children if child._parent_pid != os.getpid()}


def _kill_children() -> None:
    """Kill the children that a script would wait for; its daemons end as those of a script."""
    if "multiprocessing.process" in sys.modules:
        for child in tuple(sys.modules["multiprocessing.process"]._children):
            if not child.daemon and child.exitcode is None:
                with contextlib.suppress(ProcessLookupError):  # a thread of its pool was faster
                    os.kill(child.pid, signal.SIGKILL)


@interrupts.bottom
def run_to_end(serve: Callable[[], int | None], *, waits_for_children: bool = True) -> NoReturn:
    """Run what a worker process is for, then end the process.

    Args:
        serve: Returns the exit status; None is 0.
        waits_for_children: Whether its children by `multiprocessing` end before it, as those of a
            script; or with it.
    """
    try:
        status = serve() or 0
        _end_loky()
        if not waits_for_children:
            _kill_children()
        _leave(status)
    except BaseException:  # noqa: BLE001 (the process ends here, whatever it was)
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


def run(
    connection: Connection, after_steps: Callable[[], object], doorbell: socket.socket | None
) -> NoReturn:
    """Run a worker process to its end."""
    run_to_end(ActorHost(connection, enter_environment, after_steps, doorbell).serve)
