"""Connecting to a Ray cluster, with a clear error within seconds if there is none."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import ray

from dray.engines.base import Options
from dray.engines.ray.errors import translate
from dray.engines.rpc.actor_host import set_variables
from dray.engines.runtime import Described
from dray.errors import ClusterUnreachableError, ConfigError
from dray.host import user_name

_PATIENCE_S = 5.0
_NO_CLIENT = (
    "Ray Client is not supported, because workers could not reach this process; run the program "
    "on a node of the cluster, best with `ray job submit`"
)
# Fields whose files Ray takes from the disk of the program, for a whole job alone.
_UPLOADED = ("working_dir", "py_modules")


def connect(options: Options) -> bool:
    """Make sure that this process is connected to a cluster.

    Returns:
        Whether it was done here, and so is to be undone at the end.

    Raises:
        ClusterUnreachableError: There is no cluster, or it runs another Python or Ray.
        ConfigError: The options do not fit a cluster.
    """
    if options.nodes:
        raise ConfigError(
            "nodes: simulated nodes are for the process engine; a cluster has its own, and "
            "ray.cluster_utils.Cluster makes one of several nodes on this machine"
        )
    if ray.is_initialized():
        _check_fits_connection(options)
        return False
    address = _address(options.address)
    if address == "local":
        _initialise(options, "local", **_own_resources(options), **options.of_a_cluster)
        return True
    _refuse_own_resources(options)
    if address.startswith("ray://"):
        raise ConfigError(f"address={address!r}: {_NO_CLIENT}")
    if address != "auto":
        _probe(address)
        _greet(address)
    elif last_started := _last_started():
        _probe(last_started)
    _initialise(options, address)
    return True


def own_connection() -> object:
    """Return what stands for this process's connection to Ray, and no other one; None is none."""
    return ray._private.worker.global_worker.node


def _check_fits_connection(options: Options) -> None:
    """Return if options say nothing that the program's own `ray.init()` has settled otherwise.

    Raises:
        ConfigError: They do, or Ray Client made the connection.
    """
    if ray.util.client.ray.is_connected():
        raise ConfigError(f"ray.init('ray://...'): {_NO_CLIENT}")
    if options.address not in (None, "auto"):
        raise ConfigError(
            f"address={options.address!r}: this process is connected to a Ray cluster already; "
            "leave the address out to use that one, or call ray.shutdown() first"
        )
    _refuse_own_resources(options)
    namespace = ray.get_runtime_context().namespace
    if options.namespace not in (None, namespace):
        raise ConfigError(
            f"namespace={options.namespace!r}: this process is connected to a Ray cluster already, "
            f"in the namespace {namespace!r}; give it to ray.init()"
        )
    environment = options.runtime_env.as_dict()
    local = [name for name in _UPLOADED if _is_local(environment.get(name))]
    if local:
        raise ConfigError(
            f"runtime_env: {' and '.join(local)}: Ray carries local files to the nodes as it "
            "connects, and this process is connected already; give them to ray.init()"
        )


def _is_local(given: Any) -> bool:
    """Return whether any of a path, a module or several of them is no URL."""
    several = given if isinstance(given, list | tuple) else [given]
    return any(one is not None and "://" not in str(one) for one in several)


def _refuse_own_resources(options: Options) -> None:
    given = [name.lstrip("_") for name, value in _own_resources(options).items() if value]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: what a cluster offers is declared by its nodes (`ray start "
            "--num-cpus=... --resources=... --labels=...`); with address='local' it works here"
        )


def _address(given: str | None) -> str:
    """Return where to connect to; "local" where no address is given and no cluster runs here."""
    if given not in (None, "auto"):
        return given
    if from_environment := os.environ.get("RAY_ADDRESS"):
        return from_environment
    if given is None:
        if not _is_open(_last_started()):
            return "local"
        _check_owner()
    return "auto"


def _last_started() -> str | None:
    """Return the address of the cluster that `ray start` has started here; it may be gone."""
    address: str | None = ray._private.services.find_bootstrap_address(None)
    return address


def _check_owner() -> None:
    """Check that the cluster that was started here last is not another user's.

    Ray notes its address in a file that everybody may write.

    Raises:
        ConfigError: It is: who joins it runs its owner's code, and shows him all.
    """
    owner = 0
    with contextlib.suppress(FileNotFoundError):  # it has just ended
        owner = os.stat(ray._common.utils.get_ray_address_file(None)).st_uid
    if owner not in (0, os.geteuid()):
        raise ConfigError(
            f"the Ray cluster that was started here last, at {_last_started()}, is another user's "
            f"({user_name(owner)}); give dray.init(address='auto') to join it if you trust that "
            "user, or address='local' to start one of your own"
        )


def _is_open(address: str | None) -> bool:
    try:
        _probe(address or "")
    except (ClusterUnreachableError, ConfigError):
        return False
    return True


def _own_resources(options: Options) -> Described:
    resources = {name: quantity for name, quantity in options.resources.items() if name != "memory"}
    return {
        "num_cpus": options.num_cpus,
        "num_gpus": options.num_gpus,
        "resources": resources or None,
        "_memory": options.resources.get("memory"),
        "labels": dict(options.labels) or None,
        "object_store_memory": options.object_store_memory,
    }


def _hide_token() -> None:
    """Let nobody else read the token of the clusters that start here, which Ray itself does not.

    With the token, anybody who can connect runs code in such a cluster as its user.
    """
    with contextlib.suppress(OSError, RuntimeError):  # there is no home, or it is somebody else's
        directory = Path.home() / ".ray"
        directory.mkdir(exist_ok=True)
        directory.chmod(0o700)


@contextlib.contextmanager
def own_breakpoint() -> Iterator[None]:
    """Have `breakpoint()` mean what it meant before: Ray sets its own as it starts."""
    debugger = os.environ.get("PYTHONBREAKPOINT")
    try:
        yield
    finally:
        set_variables({"PYTHONBREAKPOINT": debugger})


@own_breakpoint()
def _initialise(options: Options, address: str, **further: Any) -> None:
    environment = options.runtime_env.as_dict()
    if options.wait_for_nodes_s:  # so do what runs in the cluster
        patience = {"DRAY_WAIT_FOR_NODES_S": str(options.wait_for_nodes_s)}
        environment["env_vars"] = {**patience, **environment.get("env_vars", {})}
    if address == "local":
        _hide_token()
    try:
        ray.init(
            address=address,
            namespace=options.namespace,
            runtime_env=environment or None,
            # What tasks and actors print; runs print by rank (`sidecar.py`).
            log_to_driver=options.log_to_driver,
            logging_level="ERROR",
            **further,
        )
    except ConnectionError as error:
        raise ClusterUnreachableError(
            "there is no Ray cluster here: neither RAY_ADDRESS nor a cluster on this machine "
            "was found. Start one with `ray start --head`, or give "
            "dray.init(address='host:port'); dray.init(engine='ray', address='local') starts "
            "one that ends with this process. dray.init() without an address needs no cluster, "
            "and with DRAY_ENGINE=process an unchanged program needs none either"
        ) from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"Ray refuses this: {error}") from error
    except ray.exceptions.RayError as error:
        raise translate(error) from error
    except Exception as error:  # such as the bare one of a node that does not start in time
        text = str(error)
        if "ersion mismatch" in text:
            raise ClusterUnreachableError(
                f"the cluster at {address} runs other versions than this program: {text} Use the "
                "same Python and the same Ray on every node and here."
            ) from error
        failed = f"the cluster at {address} cannot be joined from here"
        if address == "local":
            failed = "no Ray cluster can be started here"
        raise ClusterUnreachableError(f"{failed}: {text}") from error


def _probe(address: str) -> None:
    """Look whether anybody listens there: Ray itself would try for minutes, then end the process.

    Raises:
        ClusterUnreachableError: Nobody does.
        ConfigError: It is no address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"address={address!r} must be 'auto', 'local' or 'host:port' of the cluster's head, "
            "such as '10.0.0.1:6379'"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except OSError as error:
        raise _unreachable(address, str(error)) from error


def _greet(address: str) -> None:
    """Ask the cluster's head who it is, and do not wait for an answer for long.

    Raises:
        ClusterUnreachableError: It does not answer, or not to this program.
    """
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(ray._raylet.GcsClient(address=address))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the answer)
            answer.set_exception(error)

    threading.Thread(target=ask, name="dray-greeting", daemon=True).start()
    try:
        answer.result(_PATIENCE_S)
    except FutureTimeoutError as error:
        raise _unreachable(address, "something listens there, but does not answer") from error
    except Exception as error:
        if "AuthToken" in str(error) or "Unauthenticated" in str(error):
            raise ClusterUnreachableError(
                f"the cluster at {address} asks for a token, and does not accept this program's; "
                "set RAY_AUTH_MODE=token, and have the cluster's token in ~/.ray/auth_token or "
                "RAY_AUTH_TOKEN"
            ) from error
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, reason: str) -> ClusterUnreachableError:
    return ClusterUnreachableError(
        f"no Ray cluster answers at {address} ({reason}). `ray start --head` prints the address "
        "of its cluster; `ray status` tells whether it runs"
    )
