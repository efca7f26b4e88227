"""The part of the driver's environment that is sent to a worker on another machine.

A program on a cluster finds the same environment as in a process of the driver's machine, as far as
that is meaningful there. These are its directory and import path, if the node has them, and the
environment variables that the node has not set itself, without those that describe the driver's
machine.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from dray.engines.rpc import wire
from dray.errors import ConfigError
from dray.settings import is_rays_worker

_THREADS = "OMP_NUM_THREADS"  # Ray sets it in its workers, where it is not given

# Variables that say something of a machine, a session or an installation.
_BOUND = {
    *("_", "DISPLAY", "HOME", "HOST", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PATH", "PS1"),
    *("PWD", "PYTHONBREAKPOINT", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "SHELL", "SHLVL"),
    *("TEMP", "TERM", "TMP", "TMPDIR", "TTY", "TZ", "USER", "VIRTUAL_ENV"),
}
_BOUND_PREFIXES = (
    *("ASCEND_", "BASH_", "CONDA_", "CUDA_VISIBLE", "DBUS_", "HABANA_", "HIP_VISIBLE"),
    *("KUBERNETES_", "LC_", "LD_", "MEGASCALE_", "NEURON_RT_", "NVIDIA_", "ONEAPI_", "PBS_"),
    *("PYENV_", "RAY_", "ROCR_", "SLURM_", "SSH_", "TPU_", "XDG_", "ZE_"),
)


def portable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that mean the same on another machine, without Ray's guesses."""
    guessed = {_THREADS} if is_rays_worker() and not was_given(_THREADS) else set()
    return {
        name: value
        for name, value in environment.items()
        if name not in _BOUND | guessed and not name.startswith(_BOUND_PREFIXES)
    }


def take(begin: wire.Begin, directory: str | None) -> None:
    """Go where the driver is, in a worker.

    Args:
        directory: Working directory of the worker; None leaves it to the node.

    Raises:
        ConfigError: The node does not have the directory.
    """
    if not was_given(_THREADS):
        os.environ.pop(_THREADS, None)  # Ray's guess; the framework's backend knows better
    for name, value in begin.environment.items():
        os.environ.setdefault(name, value)
    if directory is not None:
        if not os.path.isdir(directory):
            raise ConfigError(
                f"the worker's working_dir {directory} does not exist on node {os.uname().nodename}"
                "; give it to dray.init(runtime_env=...), which carries it to all nodes, or give "
                "one that all nodes share"
            )
        os.chdir(directory)
        sys.path.insert(0, directory)
    elif os.path.isdir(begin.cwd):
        os.chdir(begin.cwd)
    sys.path += [entry for entry in begin.path if entry not in sys.path]


def drop_guesses(names: Iterable[str]) -> dict[str, str]:
    """Unset those of some variables that Ray has set since this process began; return them."""
    guessed = [name for name in names if name in os.environ and not was_given(name)]
    return {name: os.environ.pop(name) for name in guessed}


@functools.cache
def was_given(variable: str) -> bool:
    """Return whether a variable was there when this process began."""
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(entry.startswith(variable.encode() + b"=") for entry in given)
