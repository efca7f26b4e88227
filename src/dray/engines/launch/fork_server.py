"""The fork server, which imports the frameworks once and then forks a worker for each request.

It is a fresh interpreter that never runs the user's `__main__`. It has one thread and opens no CUDA
context, no OpenMP pool and no XLA client, so that its forks are clean. It is also the parent of all
workers: it reaps them, reports how they ended, and kills the processes that they leave behind.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from dray.engines import thread_limits
from dray.engines.launch import resource_tracker, shared_libraries, system_limits
from dray.engines.launch.fresh_interpreter import interpreter
from dray.engines.launch.heir import Heir, become_heir
from dray.engines.launch.resource_tracker import MadeResources
from dray.engines.rpc import actor_host, lifeline, sockets, wire
from dray.engines.rpc.titled_output import TitledStream

_OF_EVERY_WORKER = (
    *("cloudpickle", "multiprocessing.connection", "multiprocessing.resource_tracker"),
)
_INHERITED = 3  # standard input, output and error keep their numbers
_MOST_FDS = 6  # that come with a request
# Each learns from workers that have imported more; and what it cannot learn costs it a try.
_MOST_GENERATIONS = 3
_MOST_UNFIT = 8
# Ctrl-C, `timeout` and batch systems, which warn a job by a signal of the user's choice, send these
# to all processes of a program; the driver answers, and what it does not survive ends its workers.
_THE_DRIVERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class ForkServer:
    """Serves one driver over one socket.

    Args:
        control: Requests come in and notices go out here.
        entry: The module of its workers, see `Entry`.
        spawn: Start each worker as a fresh interpreter instead of a fork.
        notices: Socket for notices if the control socket is another server's, whose heir this is.
        generation: Number of servers before this one.
    """

    def __init__(
        self,
        control: socket.socket,
        driver: int,
        entry: str,
        spawn: bool,
        open_files: int,
        notices: socket.socket | None = None,
        generation: int = 0,
    ) -> None:
        self._control = control
        self._notices = notices or control
        self._generation = generation
        self._heir: Heir | None = None
        self._unfit: set[str] = set()  # modules that an heir could not have
        self._of_tasks: frozenset[str] = frozenset()  # modules that workers of tasks have imported
        self._driver = driver
        self._entry = entry
        self._spawn = spawn
        self._worker_open_files = open_files
        self._open_files = system_limits.OpenFiles()
        self._workers: dict[int, int] = {}  # pid -> number
        self._made: dict[int, MadeResources] = {}  # pid -> what it has made
        self._killed: set[int] = set()  # pids that have not ended yet
        self._selector = selectors.DefaultSelector()
        self._wakeup, wakeup_in = socket.socketpair()
        self._wakeup_in = wakeup_in
        self._helpers: frozenset[int] = frozenset()
        self._handle = lifeline.open_process_handle(driver)

    def serve(self) -> None:
        """Serve until the driver is gone, then kill every worker and all that is below them."""
        lifeline.adopt_orphans()
        self._helpers = frozenset(lifeline.children(os.getpid()))  # of what has been imported
        self._wakeup.setblocking(False)
        self._wakeup_in.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_in.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_request)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_child)
        if self._handle is not None:
            self._selector.register(self._handle, selectors.EVENT_READ, self._on_driver_gone)
        try:
            while True:
                left = None if self._heir is None else self._heir.time_left()
                for key, _ in self._selector.select(left):
                    key.data()
                if left == 0 and self._heir is not None:
                    self._heir.kill()  # an import that hangs; its socket closes
        except EOFError:
            pass
        finally:
            if self._heir is not None:
                self._heir.end()
            lifeline.kill_below(os.getpid())
            for pid in self._workers:
                lifeline.kill_group(pid)
            for pid in self._workers:
                self._clean_up_after(pid)

    def _on_driver_gone(self) -> None:
        raise EOFError

    def _on_request(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, wire.REQUEST.size, _MOST_FDS)
        except ConnectionError:
            raise EOFError from None
        if not data:
            raise EOFError
        kind, number, value = wire.REQUEST.unpack(data)
        if self._is_for_heir(kind, number, value) and self._hands_on(data, fds):
            for fd in fds:
                os.close(fd)
        elif kind == wire.KILL:
            self._kill(number)
        elif kind == wire.CANCEL:
            self._cancel(number, value)
        elif kind == wire.FORK:
            self._fork(number, fds, value)

    def _is_for_heir(self, kind: bytes, number: int, value: int) -> bool:
        if self._heir is None or not self._heir.ready:
            return False
        if kind == wire.FORK:
            return not value & wire.UNLEARNED
        return number not in self._workers.values()

    def _hands_on(self, data: bytes, fds: list[int]) -> bool:
        """Hand a request on; return False if too many descriptors are on their way."""
        assert self._heir is not None
        try:
            sockets.send_fds(self._heir.socket, data, fds)
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                return False
            raise EOFError from None
        return True

    def _learn(self, modules: Sequence[str]) -> None:
        """Begin to import what workers have told: in a fork, which makes the next workers."""
        new = [m for m in modules if m not in sys.modules and not self._is_unfit(m)]
        usable = not self._spawn and self._heir is None and self._generation < _MOST_GENERATIONS
        if not usable or not new or len(self._unfit) > _MOST_UNFIT:
            return
        with contextlib.suppress(OSError):  # no process can be started: it goes without
            self._heir = Heir(new, self._become_heir)
            self._selector.register(self._heir.socket, selectors.EVENT_READ, self._on_heir)

    def _is_unfit(self, module: str) -> bool:
        return any(module == name or module.startswith(f"{name}.") for name in self._unfit)

    def _become_heir(self, control: socket.socket, modules: Sequence[str]) -> None:
        notices = self._notices.dup()
        self._forget()
        become_heir(control, modules)
        generation = self._generation + 1
        server = ForkServer(
            control, self._driver, self._entry, False, self._worker_open_files, notices, generation
        )
        server.serve()

    def _on_heir(self) -> None:
        heir = self._heir
        assert heir is not None
        if heir.hear():
            return
        if heir.ready:  # its workers have no server any more; the driver starts another one
            raise EOFError
        self._selector.unregister(heir.socket)
        heir.end()
        self._heir = None
        if heir.unfit:
            self._unfit.add(heir.unfit)
            self._learn(heir.modules)

    def _fork(self, number: int, fds: list[int], value: int) -> None:
        """Start a worker; a failure is that of this worker alone."""
        try:
            if len(fds) < value & ~wire.UNLEARNED:  # the kernel leaves out what has no room
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = self._start(fds, None if value & wire.UNLEARNED else self._of_tasks)
        except OSError as error:
            self._notify(wire.FAILED, number, error.errno or 0)
        else:
            self._workers[pid] = number
            self._notify(wire.STARTED, number, pid)
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, fds: list[int], earlier: frozenset[str] | None) -> int:
        made = MadeResources(earlier)
        self._open_files.make_room(made.inlet)
        try:
            pid = self._start_telling(made, fds)
        except OSError:
            os.close(made.outlet)
            raise
        finally:
            os.close(made.inlet)
        self._made[pid] = made
        self._selector.register(made.outlet, selectors.EVENT_READ, lambda: self._listen(pid))
        return pid

    def _start_telling(self, made: MadeResources, fds: list[int]) -> int:
        if self._spawn:
            for fd in (made.inlet, *fds):
                os.set_inheritable(fd, True)
            numbers = (self._worker_open_files, made.inlet, *fds)
            command = interpreter(sys.path, "worker", self._entry, *map(str, numbers))
            return os.posix_spawn(command[0], command, os.environ, setpgroup=0)
        limited = _entry(self._entry).limits_threads(fds[2:])
        thread_limits.before_fork(limited=limited)
        pid = os.fork()
        if pid == 0:
            try:
                self._forget()
                os.close(made.outlet)
                become_worker(self._entry, self._worker_open_files, made.inlet, fds)
            finally:
                os._exit(1)
        with contextlib.suppress(OSError):  # the child does it too; whoever is first wins
            os.setpgid(pid, pid)
        return pid

    def _forget(self) -> None:
        """Drop, in a child, what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        own = (self._control, self._notices, self._wakeup, self._wakeup_in)
        for sock in (*own, *(() if self._heir is None else (self._heir.socket,))):
            sock.close()
        if self._handle is not None:
            os.close(self._handle)
        for made in self._made.values():
            os.close(made.outlet)

    def _cancel(self, number: int, task: int) -> None:
        for pid, known in self._workers.items():
            if known == number:
                made = self._made[pid]
                made.to_tell += wire.CANCELLED.pack(task)
                self._tell_back(made)

    def _tell_back(self, made: MadeResources) -> None:
        """Tell a worker as much as it takes now, and the rest as it takes more."""
        made.tell_back()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if made.to_tell else 0)
        with contextlib.suppress(KeyError):  # it hears of nothing any more
            key = self._selector.get_key(made.outlet)
            if key.events != wanted:
                self._selector.modify(made.outlet, wanted, key.data)

    def _kill(self, number: int) -> None:
        """Kill a worker; its end is told when it has come, which frees its devices."""
        for pid, known in list(self._workers.items()):
            if known == number and not self._reap(pid):
                self._killed.add(pid)
                lifeline.kill_group(pid)

    def _on_child(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in self._workers:
                    self._gone(*ended, killed=ended[0] in self._killed)
                elif self._heir is not None and ended[0] == self._heir.pid:
                    self._heir.reaped = True
        self._kill_orphans()

    def _reap(self, pid: int) -> bool:
        """Take note if a worker has ended on its own; return whether it has."""
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            self._gone(pid, status, killed=False)
        return bool(done)

    def _gone(self, pid: int, status: int, *, killed: bool) -> None:
        lifeline.kill_group(pid)  # what the worker started goes with it
        self._kill_orphans()
        self._clean_up_after(pid)
        number = self._workers.pop(pid)
        self._killed.discard(pid)
        self._notify(wire.EXITED, number, os.waitstatus_to_exitcode(status), killed)

    def _kill_orphans(self) -> None:
        """Kill what a worker that is gone had started in a session of its own.

        It has become a child of this process; a worker that lives keeps its own.
        """
        for pid in lifeline.children(os.getpid()):
            known = pid in self._workers or pid in self._helpers
            if not known and (self._heir is None or pid != self._heir.pid):
                lifeline.kill_family(pid)

    def _listen(self, pid: int) -> None:
        made = self._made.get(pid)
        if made is None:  # its end came in the same round of events
            return
        if made.to_tell:
            self._tell_back(made)
        if not made.read():
            self._selector.unregister(made.outlet)
        self._learn_from(made)

    def _learn_from(self, made: MadeResources) -> None:
        modules, made.imported = made.imported, []
        if made.repeatable and made.earlier is not None:
            modules += [name for name in made.repeatable if name in made.earlier]
            self._of_tasks |= frozenset(made.repeatable)
        made.repeatable = []
        self._learn(modules)

    def _clean_up_after(self, pid: int) -> None:
        made = self._made.pop(pid)
        with contextlib.suppress(KeyError):  # the worker has closed it
            self._selector.unregister(made.outlet)
        made.remove([*self._made.values()])
        self._learn_from(made)

    def _notify(self, kind: bytes, number: int, value: int, flag: bool = False) -> None:
        try:
            self._notices.sendall(wire.NOTICE.pack(kind, number, value, flag))
        except OSError:
            raise EOFError from None


class Entry(Protocol):
    """A module whose `run` is what a worker does."""

    def limits_threads(self, fds: Sequence[int]) -> bool:
        """Return whether a worker with these descriptors is to compute with its CPUs alone."""

    def run(self, inlet: int, fds: Sequence[int]) -> NoReturn:
        """Run a worker to its end.

        Args:
            inlet: A socket to the fork server: where to tell what must not be left behind, and
                what has been imported, and where a worker hears of what is cancelled.
            fds: Descriptors from the driver, besides its output.
        """


def _entry(module: str) -> Entry:
    return cast(Entry, import_module(module))


def become_worker(entry: str, open_files: int, inlet: int, fds: list[int]) -> NoReturn:
    """Turn this process into a worker.

    Args:
        entry: Its module, see `Entry`.
        inlet: A socket to the server, see `Entry.run`.
        fds: Future standard output and error, and what the driver gives its entry.
    """
    with contextlib.suppress(PermissionError):  # a spawned worker leads its group already
        os.setpgid(0, 0)
    lifeline.children_die_with_me()
    lifeline.adopt_orphans()
    lifeline.end_well_without_parent()
    system_limits.restore_open_files(open_files)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    out, err, *own = fds
    for fd in (inlet, *own):
        os.set_inheritable(fd, False)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    for fd in (null, out, err):
        if fd >= _INHERITED:
            os.close(fd)
    # New ones: those of a server that is a fork of the driver are whatever the driver made them.
    sys.stdout, sys.stderr = TitledStream(1), TitledStream(2)
    resource_tracker.tell(inlet)
    faulthandler.enable()
    atexit._clear()  # what the server's imports registered is the server's
    gc.enable()
    _entry(entry).run(inlet, own)


def _import_for_workers(modules: Sequence[str]) -> None:
    """Import what workers will need, so that they share it."""
    gc.disable()  # a collection during imports finds nothing, and costs a fifth of the time
    actor_host.import_quietly(_OF_EVERY_WORKER)
    shared_libraries.load_beside_imports(modules)
    actor_host.import_quietly(modules)
    with contextlib.suppress(Exception):  # what fails fails again, in sight, in a worker
        thread_limits.find_for_forks()
    gc.freeze()  # so that a worker's collector does not write to, and so copy, shared pages


def main(arguments: list[str]) -> None:
    """Run a fork server, or in spawn mode, a worker.

    Args:
        arguments: `serve CONTROL_FD LIFELINE_FD DRIVER_PID OPEN_FILES METHOD ENTRY MODULE...` or
            `worker ENTRY OPEN_FILES INLET FD...`, as `become_worker` takes them.
    """
    role, *rest = arguments
    if role == "worker":
        open_files, inlet, *fds = map(int, rest[1:])
        become_worker(rest[0], open_files, inlet, fds)
    control_fd, lifeline_fd, driver, open_files_, method, entry, *modules = rest
    serve(int(control_fd), int(lifeline_fd), int(driver), int(open_files_), method, entry, modules)


def serve(
    control_fd: int,
    lifeline_fd: int,
    driver: int,
    open_files: int,
    method: str,
    entry: str,
    modules: Sequence[str],
) -> None:
    """Run a fork server to its end, in a process of its own; never returns.

    Args:
        lifeline_fd: A pipe that closes when the driver dies.
        method: "fork" or "spawn".
        entry: The module of its workers, see `Entry`.
    """
    lifeline.signal_on_hangup(lifeline_fd)
    for fd in (control_fd, lifeline_fd):  # or workers would hold them open when this process dies
        os.set_inheritable(fd, False)
    for number in _THE_DRIVERS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python does, and some scripts do not
    # Whatever the driver has blocked: the server hears of its children, workers of the rest.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})
    spawn = method == "spawn"
    if not spawn:
        _import_for_workers((entry, *modules))
    server = ForkServer(sockets.socket_of(control_fd), driver, entry, spawn, open_files)
    os.close(lifeline_fd)
    server.serve()
    os._exit(0)
