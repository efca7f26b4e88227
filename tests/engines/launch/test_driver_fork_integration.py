"""A fork server that is a fork of the driver: only where it is safe, and without side effects."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.measured import is_measured
from tests.support.programs import Program, run, survivors, write

pytestmark = pytest.mark.skipif(is_measured(), reason="dray forks no driver that is traced")

# Tells whether the fork server is a fork of the driver (it has its command line) or a fresh one.
TELL = """
import psutil
import dray.train.torch

def start(function=lambda: None, **options):
    run = RunConfig(name="run", storage_path=os.environ["STORAGE"])
    if options:
        trainer = DataParallelTrainer(function, run_config=run, **options)
    else:
        trainer = dray.train.torch.TorchTrainer(function, run_config=run)
    (server,) = (
        p for p in psutil.Process().children() if "resource_tracker" not in str(p.cmdline())
    )
    print("fresh" if "-c" in server.cmdline() else "shared", flush=True)
    return trainer

def check():
    import torch
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    return (torch.randn(300, 300) @ torch.randn(300, 300)).shape[0]
"""


# A device that is neither memory nor a terminal; the last is everywhere where one is root.
DEVICE = next(
    (path for path in ("/dev/fuse", "/dev/net/tun") if os.access(path, os.R_OK)),
    "/dev/loop-control",
)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (
            "import torch, numpy; numpy.ones((300, 300)) @ numpy.ones((300, 300));"
            "null, pts = open('/dev/null'), open('/dev/ptmx');"
            # The server of its tasks has what the driver had, and serves for the training too.
            "import dray; dray.get(dray.remote(lambda: 1).remote())",
            "shared",
        ),
        ("", "fresh"),  # there is nothing to share
        # On two cores or more this starts an OpenMP pool; a fork would hang in its first operation.
        (
            "import torch; torch.set_num_threads(2); torch.ones(999, 999) @ torch.ones(999, 999)",
            "fresh",
        ),
    ],
)
def test_workers_of_either_kind_compute(tmp_path: Path, before: str, expected: str) -> None:
    script = write(
        tmp_path / "script.py", f"{before}\n{TELL}\nprint(start(check).fit().return_value)"
    )
    done = run(script, tmp_path / "runs", DRAY_PROGRESS="0")
    assert done.stdout.split() == [expected, "300"], done.stderr


def test_shared_only_where_it_is_safe(tmp_path: Path) -> None:
    """One reason against it after the other, and none at the first and the last."""
    script = write(
        tmp_path / "script.py",
        f"""
import json
{TELL}
from dataclasses import dataclass
from multiprocessing import resource_tracker
from dray.train.backend import BackendConfig

@dataclass
class Framework(BackendConfig):
    # Its import takes less than PyTorch's.
    modules: tuple = ("json",)

def tell(reason, undo=lambda: None, modules=("json",)):
    print(reason, end=" ")
    while len(os.listdir("/proc/self/task")) > threading.active_count():
        pass  # a thread that was joined may be there for a moment
    start(backend_config=Framework(modules))
    dray.shutdown()
    undo()

tell("nothing")
tell("unimported", modules=("json", "wave"))  # the fork imports the rest
tell("absent", modules=("wave",))

end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
tell("thread", end.set)
thread.join()

sys.settrace(lambda *_: None)
tell("tracing", lambda: sys.settrace(None))

# A GPU that has been asked for its name is of no use to a fork.
device = open({DEVICE!r})
tell("device", device.close)

for variable, value in (("DRAY_SHARE_IMPORTS", "0"), ("DRAY_START_METHOD", "spawn")):
    os.environ[variable] = value
    tell(variable, lambda: os.environ.pop(variable))

tell("undone")

# Shared memory has a tracker process, which a fork could not tell of its own.
resource_tracker.ensure_running()
tell("tracker")
""",
    )
    done = run(script, tmp_path / "runs", DRAY_PROGRESS="0")
    assert done.stdout.splitlines() == [
        "nothing shared",
        "unimported shared",
        "absent fresh",
        "thread fresh",
        "tracing fresh",
        "device fresh",
        "DRAY_SHARE_IMPORTS fresh",
        "DRAY_START_METHOD fresh",
        "undone shared",
        "tracker fresh",
    ], done.stderr


def test_nothing_of_the_driver_acts_in_the_fork(tmp_path: Path) -> None:
    """Unflushed files, exit hooks, finalisers, handlers, logs and descriptors stay the driver's."""
    script = write(
        tmp_path / "script.py",
        f"""
import torch
{TELL}
import atexit, contextlib, io, logging.handlers, signal, tempfile, random, numpy
storage = os.environ["STORAGE"]
os.makedirs(storage)
journal = open(os.path.join(storage, "journal"), "w")
journal.write("once")  # not flushed
directory = tempfile.TemporaryDirectory(dir=storage)
atexit.register(lambda: open(os.path.join(storage, f"exit-{{os.getpid()}}"), "w").close())
log = os.path.join(storage, "log")
class Odd(io.StringIO):
    def fileno(self):
        return None
logging.basicConfig(handlers=[logging.handlers.TimedRotatingFileHandler(log, "S", 1)])
for handler in (
    logging.StreamHandler(open(log, "a")),
    logging.StreamHandler(Odd()),
    logging.FileHandler(log, delay=True),
    logging.handlers.MemoryHandler(9, target=logging.FileHandler(log)),
    logging.handlers.SysLogHandler(("127.0.0.1", 514)),
):
    logging.getLogger("own").addHandler(handler)
logging.getLogger("console").addHandler(logging.StreamHandler())
signal.signal(signal.SIGTERM, lambda *_: None)
torch.manual_seed(0), numpy.random.seed(0), random.seed(0)
torch.set_default_dtype(torch.float64)
same = torch.initial_seed()
DRIVER = os.getpid()

def train():
    import torch
    fds = [f"/proc/self/fd/{{n}}" for n in os.listdir("/proc/self/fd")]
    targets = {{os.readlink(fd) for fd in fds if os.path.exists(fd)}}
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        logging.warning("of the root")
        logging.getLogger("own").warning("of its own")
    return dict(
        records=shown.getvalue().splitlines(),
        console=len(logging.getLogger("console").handlers),
        handler=signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        journal=any("journal" in t for t in targets),
        dtype=str(torch.ones(1).dtype),
        seeds=torch.initial_seed() == 0,
        main=not hasattr(sys.modules["__main__"], "DRIVER_ONLY"),
        pid=os.getpid() != DRIVER,
    )

DRIVER_ONLY = True
print(start(train).fit().return_value)
directory_alive = os.path.isdir(directory.name)
journal.close()
print(directory_alive, open(os.path.join(storage, "journal")).read())
""",
    )
    done = run(script, tmp_path / "runs", DRAY_PROGRESS="0")
    lines = done.stdout.splitlines()
    assert lines[0] == "shared", done.stderr
    assert eval(lines[1]) == {
        "records": ["WARNING:root:of the root", "WARNING:own:of its own"],
        "console": 1,
        "handler": True,
        "journal": False,
        "dtype": "torch.float32",
        "seeds": False,
        "main": True,
        "pid": True,
    }
    assert lines[2] == "True once"
    assert [path.read_text() for path in (tmp_path / "runs").glob("log*")] == [""]
    assert len(list((tmp_path / "runs").glob("exit-*"))) == 1  # the driver's


def test_the_tests_themselves_share_their_imports(shares_imports: bool) -> None:
    """A module of tests that starts a thread as it is imported costs each session 1.5 s of CPU."""
    assert shares_imports


@pytest.mark.parametrize("victim", ["driver", "server"])
def test_kill_9_leaves_nothing(tmp_path: Path, victim: str) -> None:
    script = write(
        tmp_path / "script.py",
        f"""
{TELL}
def train():
    import subprocess
    program = subprocess.Popen(["sleep", "1000"])
    print("ready", flush=True)
    threading.Event().wait()

start(train, scaling_config=ScalingConfig(num_workers=1)).fit()
""",
    )
    with Program(script, tmp_path / "runs") as program:
        program.wait_for("shared")
        program.wait_for("ready")
        (server,) = psutil.Process(program.process.pid).children()
        below = [p.pid for p in server.children(recursive=True)]
        assert len(below) == 2
        os.kill(server.pid if victim == "server" else program.process.pid, signal.SIGKILL)
        assert survivors(below) == []
        program.end()
        assert survivors([server.pid]) == []
