"""Fixtures: an engine of each kind, a place for runs, and a check that a test leaves nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

import dray
from dray import session
from dray.engines.launch import driver_fork
from dray.engines.process.engine import ProcessEngine
from dray.engines.process.hub.driver import DriverRuntime
from tests.support import measured
from tests.support.gates import Gate
from tests.support.programs import survivors

if TYPE_CHECKING:
    from tests.support.clusters import Cluster

ENGINES = ("process", "inline", "ray")
# What tasks, actors and objects are tested on.
CORE_ENGINES = ("process", "ray")

# What libraries leave in the temp directory for themselves, once a process, or when it is killed;
# and the checkpoints that dray has downloaded.
_NOT_OURS = (
    "torchinductor_",
    "ray",
    "pymp-",
    "__autograph_generated_file",
    "__pycache__",
    "dray-checkpoints-",
)


# A variable by which everything that a run of the tests has started can be told from the rest.
_MARK = "DRAY_TESTS"


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests, and all they start, a place to be tidy in, and signals as in a shell."""
    _settle(tempfile.gettempdir())
    config.add_cleanup(lambda: shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell has it in the background. Processes inherit that, and Ray interrupts a task
        # that is cancelled by this signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if measured.is_measured():
        measured.save_before_kill()
    patient: dict[str, Any] = {
        "deadline": None,
        "suppress_health_check": [HealthCheck.too_slow],
    }
    settings.register_profile("dray", derandomize=True, **patient)
    settings.register_profile("explore", derandomize=False, **patient)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dray"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run on the Ray cluster that tests share: `make test-ray` runs them."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "ray" in (parameters.get("engine_name"), parameters.get("core_engine_name")):
            item.add_marker("ray")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Give a fork that runs tests a place of its own, which it removes as this process would."""
    if os.environ[_MARK] != str(os.getpid()):
        _settle(os.path.dirname(tempfile.gettempdir()))


def _settle(where: str) -> None:
    os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="dray-tests-", dir=where)
    tempfile.tempdir = None
    os.environ[_MARK] = str(os.getpid())


_SHARES = pytest.StashKey[bool]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take what lasts, such as PyTorch, out of what each test's end looks through for garbage."""
    gc.collect()
    gc.freeze()
    torch = sys.modules.get("torch")
    if torch is not None:
        # With a pool of threads, this process could not be forked for each session's fork server,
        # which then had to import PyTorch anew.
        torch.set_num_threads(1)
    if sys.platform == "linux":
        fork = driver_fork.fork_driver(lambda: None, keep=())
        session.config.stash[_SHARES] = fork is not None and fork.wait() == 0


@pytest.fixture
def shares_imports(pytestconfig: pytest.Config) -> bool:
    """Whether this process could be forked when it had imported the tests, and run none of them."""
    return pytestconfig.stash.get(_SHARES, True)


# What an engine, or fsspec, keeps for the next run; Ray's threads have the names that Python gives.
_KEPT_THREADS = (
    "dray-reader",
    "dray-kept",
    "dray-hub",
    "Dummy-",
    "ray_",
    "data-usage-",
    "fsspecIO",
    "asyncio_",
)


def _is_rays(process: psutil.Process) -> bool:
    """Whether it belongs to the cluster: Ray keeps idle workers, and ends others at leisure."""
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return True
    if not words:  # it is about to end
        return session._engine is not None and session._engine.name == "ray"
    return (
        words[0].startswith("ray::")
        or _is_agents(process)
        or "raylet" in " ".join(words)
        or any(word.startswith("/") and "/ray/" in word for word in words)
    )


def _is_agents(process: psutil.Process) -> bool:
    """Whether it is a fork server of an agent, or an heir; each worker leads a group of its own."""
    try:
        leader = psutil.Process(os.getpgid(process.pid))
        return leader.pid != process.pid and "RayWorker" in " ".join(leader.cmdline())
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False


def _is_orphan(pid: int) -> bool:
    """Whether a process that is not below this one was left by a program that a test has run."""
    try:
        process = psutil.Process(pid)
        marked = process.environ().get(_MARK) == str(os.getpid())
        return marked and not _is_rays(process)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _described(pid: int) -> str:
    try:
        return f"{pid}: {' '.join(psutil.Process(pid).cmdline())}"[:400]
    except psutil.NoSuchProcess:
        return f"{pid}: ended now"


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that no library changes, nor pytest."""
    theirs = (
        *("PYTEST_CURRENT_TEST", "RAY_", "TORCHINDUCTOR_CACHE_DIR", "PYTORCH_NVML", "KMP_"),
        *("TF2_BEHAVIOR", "TPU_ML_PLATFORM", "HDF5_PLUGIN_PATH", "ENABLE_RUNTIME_UPTIME_TELEMETRY"),
        *("TF_CPP_MIN_LOG_LEVEL", "TPU_SKIP_MDS_QUERY"),  # JAX, which an error of a rank imports
        "_RJEM_MALLOC_CONF",
    )
    return {k: v for k, v in environment.items() if not k.startswith(theirs)}


def _temporary_files() -> set[str]:
    names = os.listdir(tempfile.gettempdir())
    return {n for n in names if not n.startswith((*_NOT_OURS, "pytest-of-")) and not _is_probe(n)}


def _is_probe(name: str) -> bool:
    """Return whether Python tries the directory with this file, or a worker died as it did.

    A process writes one of eight characters, and removes it at once, where it first asks tempfile
    for the directory: an idle worker that imports a library while this test ends, for example.
    """
    path = Path(tempfile.gettempdir(), name)
    try:
        return len(name) == 8 and path.is_file() and path.read_bytes() in (b"", b"blat")
    except FileNotFoundError:
        return True


def _children() -> set[psutil.Process]:
    return {p for p in psutil.Process().children(recursive=True) if p.is_running()}


def _heirs_of(server: int) -> Iterator[int]:
    """Yield the forks of a server that serve as well: a worker leads a process group."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(server).children(recursive=True):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process.pid) == os.getpgid(server):
                    yield process.pid


def _engine_processes() -> set[int]:
    """The fork servers, their heirs, and the idle workers of tasks, kept by a session on purpose.

    A worker that has trained something itself has a fork server of its own.
    """
    engine = session._engine
    if engine is None or engine.name != "process":
        return set()
    assert isinstance(engine, ProcessEngine)
    runtime = engine._runtime
    idle = [] if runtime is None else [w for w in runtime.pool.all.values() if not w.actor]
    servers = [server._process.pid for server in engine._servers.all()]
    return {
        *servers,
        *(heir for server in servers for heir in _heirs_of(server)),
        *(worker.pid for worker in idle if worker.pid is not None),
        *(
            process
            for worker in idle
            if worker.pid is not None
            for server in _servers_of(worker.pid)
            for process in (server, *_heirs_of(server))
        ),
    }


def _servers_of(pid: int) -> list[int]:
    try:
        children = psutil.Process(pid).children()
        return [child.pid for child in children if "fork_server" in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def _workers() -> list[str]:
    """What the process engine knows of its workers, for the message of a leak."""
    runtime = getattr(session._engine, "_runtime", None)
    workers = runtime.pool.all.values() if isinstance(runtime, DriverRuntime) else []
    return [f"{w.number}: pid {w.pid}, {w.title}, actor {w.actor}"[:400] for w in workers]


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Fail a test that leaves a process, a thread, a temporary file or a variable behind."""
    for name in ("engine", "process_engine", "core_engine", "zones"):
        if name in request.fixturenames:
            request.getfixturevalue(name)  # what an engine keeps was there before the test
    environment = dict(os.environ)
    threads = set(threading.enumerate())
    pids = set(psutil.pids())
    processes = _children()
    files = _temporary_files()
    yield
    for _ in range(2):  # errors hold frames, and these hold handles of actors, which hold more
        gc.collect()
    new_pids = set(psutil.pids()) - pids
    children = _children()
    new_processes = {p.pid for p in children - processes if not _is_rays(p)}
    new_processes |= set(filter(_is_orphan, new_pids - {p.pid for p in children}))
    alive = survivors(new_processes - _engine_processes())
    new_threads = {
        t for t in set(threading.enumerate()) - threads if not t.name.startswith(_KEPT_THREADS)
    }
    for thread in new_threads:
        thread.join(timeout=60)
    alive = [pid for pid in alive if pid not in _engine_processes()]  # some had just begun
    assert not alive, f"processes left behind: {[*map(_described, alive)]}, {_workers()}"
    assert not [t for t in new_threads if t.is_alive()], "threads left behind"
    assert not _temporary_files() - files, "temporary files left behind"
    assert _variables(os.environ) == _variables(environment), "environment variables changed"


@pytest.fixture(scope="session")
def _quiet() -> Iterator[None]:
    before = os.environ.get("DRAY_PROGRESS")
    os.environ["DRAY_PROGRESS"] = "0"
    yield
    if before is None:
        del os.environ["DRAY_PROGRESS"]
    else:
        os.environ["DRAY_PROGRESS"] = before


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A Ray cluster of three nodes on this machine, real but for the one address they share."""
    from tests.support.clusters import Cluster  # Ray may be missing where no test needs it

    cluster = Cluster()
    yield cluster
    dray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="session", params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    """Of the session's scope, so that pytest runs all tests of one engine before the next one's."""
    name: str = request.param
    return name


@pytest.fixture
def engine(engine_name: str, request: pytest.FixtureRequest, _quiet: None) -> Iterator[str]:
    """The name of the engine that runs; a test with it runs once on each."""
    if engine_name == "ray":
        _use("ray", address=request.getfixturevalue("cluster").address)
    else:
        _use(engine_name, num_cpus=8)
    with pytest.MonkeyPatch.context() as changed:
        if engine_name == "inline":
            changed.setenv("OMP_NUM_THREADS", "1")  # no pool of threads in this process
        yield engine_name


@pytest.fixture
def process_engine(_quiet: None) -> None:
    """The process engine alone, with 8 CPUs to share."""
    _use("process", num_cpus=8)


@pytest.fixture(scope="session", params=CORE_ENGINES)
def core_engine_name(request: pytest.FixtureRequest) -> str:
    """The engines of `core_engine`, one after the other."""
    name: str = request.param
    return name


@pytest.fixture
def core_engine(core_engine_name: str, request: pytest.FixtureRequest, _quiet: None) -> str:
    """An engine that runs tasks and actors, with 4 CPUs a node and 2 of the resource `special`."""
    if core_engine_name == "ray":
        _use("ray", address=request.getfixturevalue("cluster").address)
    else:
        _use("process", num_cpus=4, resources={"special": 2})
    return core_engine_name


@pytest.fixture
def zones(core_engine_name: str, request: pytest.FixtureRequest, _quiet: None) -> str:
    """The same with two nodes of 4 CPUs, whose label `zone` is `a` and `b`; `special` is in `a`."""
    if core_engine_name == "ray":
        _use("ray", address=request.getfixturevalue("cluster").address)
    else:
        a = {"num_cpus": 4, "resources": {"special": 2}, "labels": {"zone": "a"}}
        _use("process", nodes=[a, {"num_cpus": 4, "labels": {"zone": "b"}}])
    return core_engine_name


@pytest.fixture
def core_variables(core_engine: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """What makes a program use that engine."""
    return _variables_of(core_engine, request)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """What tasks wait at until the test opens it; at the end it is opened in any case."""
    gate = Gate(tmp_path)
    yield gate
    gate.close()


@pytest.fixture
def second_gate(tmp_path: Path) -> Iterator[Gate]:
    """One more."""
    gate = Gate(tmp_path, "second")
    yield gate
    gate.close()


_kept: tuple[object, ...] = ()


def _use(name: str, **options: Any) -> None:
    """Keep an engine that runs: its fork servers stay warm, as in a user's session."""
    if not dray.is_initialized() or _kept != (session.current_engine(), name, options):
        _restart(name, options)
    if name == "ray":
        from dray.engines.ray.engine import RayEngine
        from tests.support.clusters import comes_free, give_up_missing

        engine = session.current_engine()
        assert isinstance(engine, RayEngine)
        engine._reservations.give_up()
        if not comes_free():
            _restart(name, options)  # the end of a job frees what it has not given back
            if not comes_free(10):
                give_up_missing()


def _restart(name: str, options: dict[str, Any]) -> None:
    global _kept
    dray.shutdown()
    dray.init(engine=name, **options)
    _kept = (session.current_engine(), name, options)


@pytest.fixture(name="session")
def _session() -> Iterator[Any]:
    """Start sessions of the process engine, on the nodes that it is given, and end them."""
    dray.shutdown()
    yield lambda *nodes, **options: dray.init(nodes=list(nodes) or None, **options)
    dray.shutdown()


@pytest.fixture
def own_session(session: Any) -> None:
    """A session of the process engine with this machine's devices, which no other test has."""
    session(num_cpus=8)


@pytest.fixture
def variables(engine: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """What makes a program use the engine."""
    return _variables_of(engine, request)


def _variables_of(engine: str, request: pytest.FixtureRequest) -> dict[str, str]:
    if engine == "ray":
        return {"DRAY_ENGINE": "ray", "RAY_ADDRESS": request.getfixturevalue("cluster").address}
    return {"DRAY_ENGINE": engine}


@pytest.fixture(scope="session", autouse=True)
def _end_engines() -> Iterator[None]:
    yield
    dray.shutdown()


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Where a test's runs are kept."""
    return tmp_path / "runs"
