"""Settings from environment variables; no other module reads dray's variables."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

from dray.errors import ConfigError

ENGINES = ("process", "inline", "ray")
START_METHODS = ("fork", "spawn")


def host_root() -> str:
    """Return the root directory of device files: `DRAY_HOST_ROOT` for simulated hosts, or "/"."""
    return os.environ.get("DRAY_HOST_ROOT", "/")


def locks_directory() -> str | None:
    """Return the directory of device locks, `DRAY_CLAIMS`; None if the variable is "0".

    The directory does not depend on `TMPDIR`, because all drivers of a machine must use the same.
    """
    given = os.environ.get("DRAY_CLAIMS", "/tmp/dray-devices")
    return None if given == "0" else given


def _choice(variable: str, default: str, allowed: tuple[str, ...]) -> str:
    value = os.environ.get(variable, default)
    if value not in allowed:
        raise ConfigError(f"{variable}={value!r} is not one of {', '.join(filter(None, allowed))}")
    return value


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{variable}={text!r} is not a number of seconds, 0 or more")
    return value


def is_rays_worker() -> bool:
    """Return whether this process is a worker in a Ray cluster, without importing Ray.

    Such a worker is a process of Ray, or a fork of the session's agent on its node.
    """
    forked = sys.modules.get("dray.engines.ray.workers.forked_worker")
    if forked is not None and forked.own_membership() is not None:
        return True
    module = sys.modules.get("ray._private.worker")
    return module is not None and module.global_worker.mode == module.WORKER_MODE


def _engine() -> str:
    if is_rays_worker():  # regardless of the cluster's own variables
        return "ray"
    # Within a Ray job the program runs on a cluster already, so it uses that cluster.
    default = "ray" if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else "process"
    return _choice("DRAY_ENGINE", default, ENGINES)


def _flag(variable: str, default: bool) -> bool:
    return _choice(variable, "1" if default else "0", ("0", "1")) == "1"


def _rays_flag(variable: str) -> bool | None:
    """Return the value of a flag of Ray, by Ray's rules; None if the variable is not set."""
    text = os.environ.get(variable)
    return None if text is None else text.lower() in ("1", "true")


def _launched_processes() -> int:
    size = os.environ.get("WORLD_SIZE", "") if "TORCHELASTIC_RUN_ID" in os.environ else ""
    return int(size) if size.isdecimal() else 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings from the environment, read when a session starts.

    Times are in seconds.

    Attributes:
        engine: `DRAY_ENGINE`: the engine if `dray.init` names none; default within a Ray job:
            "ray". In a task or actor of Ray it is always "ray".
        start_method: `DRAY_START_METHOD`: the method by which the process engine starts workers.
        agents: `DRAY_RAY_AGENTS`: whether training workers on a Ray cluster are forks of an agent
            on their node, instead of Ray actors.
        share_imports: `DRAY_SHARE_IMPORTS`: whether the fork server may be a fork of the driver.
        progress: `DRAY_PROGRESS`: whether runs print to the terminal.
        fold_output: `DRAY_FOLD_OUTPUT`, or else Ray's `RAY_DEDUP_LOGS`: whether lines that several
            ranks print are shown once, with the number of repetitions.
        plan_path: `DRAY_PLAN`: the file to which `fit()` writes its plan before it ends the program
            without training; `dray plan` sets it.
        launched_processes: Number of processes of torchrun that run the script; 1 without torchrun.
        start_timeout_s: `DRAY_START_TIMEOUT_S`: time for which a run waits for its resources.
        keep_reservation_s: `DRAY_KEEP_RESERVATION_S`: time for which a session keeps the resources
            of a finished run in a Ray cluster, for a run that requests the same.
        own_directories: Ray's `RAY_CHDIR_TO_TRIAL_DIR`: whether the workers of a run have a working
            directory of their run, instead of the driver's.
        profiling: Ray's `RAY_PROFILING`: whether workers record the start and end of tasks and
            calls.
        share_devices: Ray's `TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES`: whether workers see the
            devices of all workers of their node; None lets the framework's backend decide.
        parting_s: Ray's `TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S`: time for the workers to leave
            their process group.
        stop_grace_s: `DRAY_STOP_GRACE_S`: time for which a run that is to stop may continue without
            a report.
        conclude_grace_s: `DRAY_CONCLUDE_GRACE_S`: time for which a run that a callback has ended
            waits for the next report, after a rank has stopped.
        report_grace_s: `DRAY_REPORT_GRACE_S`: time for which a failed run waits for the other ranks
            to make the reports that the failed ranks have made.
        wait_warning_s: `DRAY_WAIT_WARNING_S`: time for which ranks wait for others before a warning
            names those; 0 disables the warning.
        storage_retry_s: `DRAY_STORAGE_RETRY_S`: time for which a request to network storage is
            retried before it fails.
        lease_s: `DRAY_LEASE_S`: time for which a run on network storage still belongs to its driver
            after the driver's last sign of life.
        wait_for_nodes_s: `DRAY_WAIT_FOR_NODES_S`: default of `dray.init(wait_for_nodes_s=...)`,
            also if `init` is not called, as in tasks that train.
        stall_warning_s: `DRAY_STALL_WARNING_S`: time without a message from any worker after which
            a warning names work that waits for resources which no work will free; 0 disables it.
    """

    engine: str = field(default_factory=_engine)
    start_method: str = field(
        default_factory=lambda: _choice("DRAY_START_METHOD", "", ("", *START_METHODS))
    )
    agents: bool = field(default_factory=lambda: _flag("DRAY_RAY_AGENTS", True))
    share_imports: bool = field(default_factory=lambda: _flag("DRAY_SHARE_IMPORTS", True))
    progress: bool = field(default_factory=lambda: _flag("DRAY_PROGRESS", True))
    fold_output: bool = field(
        default_factory=lambda: _flag("DRAY_FOLD_OUTPUT", _rays_flag("RAY_DEDUP_LOGS") is not False)
    )
    plan_path: str = field(default_factory=lambda: os.environ.get("DRAY_PLAN", ""))
    launched_processes: int = field(default_factory=_launched_processes)
    start_timeout_s: float = field(default_factory=lambda: _seconds("DRAY_START_TIMEOUT_S", 600))
    keep_reservation_s: float = field(
        default_factory=lambda: _seconds("DRAY_KEEP_RESERVATION_S", 3)
    )
    own_directories: bool = field(
        default_factory=lambda: bool(_rays_flag("RAY_CHDIR_TO_TRIAL_DIR"))
    )
    profiling: bool = field(default_factory=lambda: bool(_rays_flag("RAY_PROFILING")))
    share_devices: bool | None = field(
        default_factory=lambda: _rays_flag("TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES")
    )
    parting_s: float = field(
        default_factory=lambda: _seconds("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", 30)
    )
    stop_grace_s: float = field(default_factory=lambda: _seconds("DRAY_STOP_GRACE_S", 10))
    conclude_grace_s: float = field(default_factory=lambda: _seconds("DRAY_CONCLUDE_GRACE_S", 60))
    report_grace_s: float = field(default_factory=lambda: _seconds("DRAY_REPORT_GRACE_S", 10))
    wait_warning_s: float = field(default_factory=lambda: _seconds("DRAY_WAIT_WARNING_S", 30))
    storage_retry_s: float = field(default_factory=lambda: _seconds("DRAY_STORAGE_RETRY_S", 60))
    lease_s: float = field(default_factory=lambda: _seconds("DRAY_LEASE_S", 30))
    wait_for_nodes_s: float = field(default_factory=lambda: _seconds("DRAY_WAIT_FOR_NODES_S", 0))
    stall_warning_s: float = field(default_factory=lambda: _seconds("DRAY_STALL_WARNING_S", 10))
