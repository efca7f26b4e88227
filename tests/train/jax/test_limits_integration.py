"""JAX and what bounds it: how long ranks wait for one another, and how many threads they take.

JAX is never used in this process: see test_jax_integration.py.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dray.train.jax
from dray.train import Result, RunConfig, ScalingConfig, WorkerGroupError
from dray.train.jax import JaxBackend, JaxConfig, JaxTrainer
from dray.train.worker.current_session import current_session

pytest.importorskip("jaxlib", reason="JAX is not installed")

alone = pytest.mark.usefixtures("process_engine")
several = pytest.mark.usefixtures("engine")
on_both = pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)


def fit(
    function: Callable[[], Any],
    storage: Path,
    workers: int = 2,
    cpus: float | None = None,
    env: dict[str, str] | None = None,
    **options: Any,
) -> Result:
    return JaxTrainer(
        function,
        jax_config=JaxConfig(**options),
        scaling_config=ScalingConfig(
            num_workers=workers, resources_per_worker=None if cpus is None else {"CPU": cpus}
        ),
        run_config=RunConfig(storage_path=storage, worker_runtime_env={"env_vars": env or {}}),
    ).fit()


class Interposed:
    """A worker group whose ranks do something on their way to the rendezvous.

    The driver's `_join` stays as it is: a fork of the driver, which later tests share, has it too.
    """

    def __init__(self, group: Any, act: Callable[[int, Any], object]) -> None:
        self._group, self._act = group, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def execute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        act, join = self._act, dray.train.jax._join

        def go(config: JaxConfig, rendezvous: Any, port: int) -> None:
            act(current_session("a test").assignment.rank, rendezvous)
            join(config, rendezvous, port)

        return self._group.execute(go if function is join else function, *arguments)


def before_joining(monkeypatch: pytest.MonkeyPatch, act: Callable[[int, Any], object]) -> None:
    """Have every rank do something on its way to the rendezvous."""
    on_start = JaxBackend.on_start

    def start(self: JaxBackend, group: Any, config: JaxConfig) -> None:
        between: Any = Interposed(group, act)
        on_start(self, between, config)

    monkeypatch.setattr(JaxBackend, "on_start", start)


@several
@on_both
@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ((1,), r"rank 0 failed: TimeoutError: rank 1 did not come to [0-9.]+:\d+ within 8 s"),
        ((1, 2), r"rank 0 failed: TimeoutError: ranks 1 and 2 did not come to .* within 8 s"),
        ((0,), r"rank [12] failed: TimeoutError: rank 0 did not answer at .* within 8 s"),
    ],
)
def test_ranks_that_do_not_come_are_named(
    storage: Path, monkeypatch: pytest.MonkeyPatch, absent: tuple[int, ...], said: str
) -> None:
    def stay_away(rank: int, _: Any) -> None:
        if rank in absent:
            threading.Event().wait()

    before_joining(monkeypatch, stay_away)
    began = time.monotonic()
    with pytest.raises((WorkerGroupError, TimeoutError), match=said):
        fit(lambda: None, storage, workers=3, cpus=0.5, timeout_s=8)
    assert time.monotonic() - began < 90  # JAX itself waits for 300 s


@alone
def test_strangers_who_come_to_the_meeting_are_ignored(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring_strangers(rank: int, rendezvous: Any) -> None:
        if rank == 0:
            return
        place = rendezvous.address, rendezvous.port
        with socket.create_connection(place) as scanner:
            scanner.sendall(b"GET / HTTP/1.0\r\nHost: nobody\r\n\r\n")
        socket.create_connection(place).close()
        os.silent = socket.create_connection(place)  # type: ignore[attr-defined]

    def train() -> Any:
        import jax

        os.silent.close() if jax.process_index() else None  # type: ignore[attr-defined]
        return jax.process_count()

    before_joining(monkeypatch, bring_strangers)
    assert fit(train, storage, timeout_s=30).return_value == 2


@several
@on_both
def test_a_rank_that_does_not_come_to_a_collective_is_named(storage: Path) -> None:
    from importlib.metadata import version

    if tuple(map(int, version("jaxlib").split(".")[:3])) < (0, 8, 2):
        pytest.skip("this JAX waits as long as it likes")

    def train() -> None:
        import jax
        import numpy as np
        from jax.experimental import multihost_utils

        multihost_utils.process_allgather(np.ones(1))
        if jax.process_index() == 1:
            threading.Event().wait()
        multihost_utils.process_allgather(np.ones(1))

    with pytest.raises(ValueError, match=r"(?s)Timed out waiting 12000ms.*it waited for rank 1"):
        fit(train, storage, timeout_s=12)


@alone
def test_flags_of_the_user_stay(storage: Path, tmp_path: Path) -> None:
    def flags() -> str | None:
        import jax

        jax.devices()  # reads them
        return os.environ.get("XLA_FLAGS")

    limit = "--xla_cpu_collective_timeout_seconds"
    assert fit(flags, storage).return_value is None  # JAX's own limits
    assert fit(flags, storage, workers=1, timeout_s=9).return_value is None
    own = "--xla_force_host_platform_device_count=2"
    found = fit(flags, storage, timeout_s=9, env={"XLA_FLAGS": own}).return_value
    assert found in (f"{own} {limit}=9", own)
    for own in (f"{limit}=77", str(tmp_path / "flags")):
        (tmp_path / "flags").write_text("--xla_force_host_platform_device_count=2")
        assert fit(flags, storage, timeout_s=9, env={"XLA_FLAGS": own}).return_value == own
    elsewhere = {"JAX_PLATFORMS": ""}  # libraries of accelerators have flags of their own
    assert fit(flags, storage, timeout_s=9, env=elsewhere).return_value is None


@alone
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_xla_computes_with_as_many_threads_as_planned(storage: Path) -> None:
    def count() -> int:
        import jax.numpy as jnp

        x = jnp.ones((500, 500))
        (x @ x).block_until_ready()
        tasks = Path("/proc/self/task").iterdir()
        return sum((task / "comm").read_text().strip() == "tf_XLAEigen" for task in tasks)

    def threads(cpus: float, **env: str) -> int:
        found: int = fit(count, storage, workers=1, cpus=cpus, env=env).return_value
        return found

    assert threads(1) == 1
    assert threads(1, OMP_NUM_THREADS="3") == 3
    assert threads(1, NPROC="4") == 4
    assert threads(1, OMP_NUM_THREADS="3", NPROC="2") == 2
