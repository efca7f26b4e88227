"""Connecting to a Ray cluster, with a clear answer within seconds if there is none."""

from __future__ import annotations

import os
import socket
from typing import Any

import ray

from dray.engines.contract import Options
from dray.errors import ClusterUnreachableError, ConfigError

_PATIENCE_S = 5.0
# What a client of a gRPC server says first, and the type of the frame that the server answers with
# (RFC 9113, sections 3.4 and 6.5).
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_HTTP2_SETTINGS = bytes([4])


def connect(options: Options) -> bool:
    """Makes sure that this process is connected to a cluster.

    Returns:
        Whether it was done here, and so is to be undone at the end.

    Raises:
        ClusterUnreachableError: There is no cluster, or it runs another Python or Ray.
        ConfigError: The options do not fit a cluster.
    """
    if ray.is_initialized():
        if options.address not in (None, "auto"):
            raise ConfigError(
                f"address={options.address!r}: this process is connected to a Ray cluster already; "
                "leave the address out to use that one, or call ray.shutdown() first"
            )
        return False
    if options.address == "local":
        _initialise(options, "local", **_own_resources(options))
        return True
    given = [name for name, value in _own_resources(options).items() if value]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: what a cluster offers is declared by its nodes (`ray start "
            "--num-cpus=... --resources=... --labels=...`); with address='local' it works here"
        )
    address = options.address or "auto"
    if address.startswith("ray://"):
        raise ConfigError(
            f"address={address!r}: Ray Client is not supported, because workers could not reach "
            "this process; run the program on a node of the cluster, best with `ray job submit`"
        )
    for known in _addresses(address):
        _probe(known)
    _initialise(options, address)
    return True


def _own_resources(options: Options) -> dict[str, Any]:
    resources = {name: quantity for name, quantity in options.resources.items() if name != "memory"}
    return {
        "num_cpus": options.num_cpus,
        "num_gpus": options.num_gpus,
        "resources": resources or None,
        "labels": dict(options.labels) or None,
    }


def _initialise(options: Options, address: str, **further: Any) -> None:
    environment = options.runtime_env.as_dict()
    try:
        ray.init(
            address=address,
            namespace=options.namespace,
            runtime_env=environment or None,
            log_to_driver=False,  # dray shows what workers print, by rank
            logging_level="ERROR",
            **further,
        )
    except ConnectionError as error:
        raise ClusterUnreachableError(
            "there is no Ray cluster here: neither RAY_ADDRESS nor a cluster on this machine was "
            "found. Start one with `ray start --head`, or give dray.init(address='host:port'); "
            "dray.init(engine='ray', address='local') starts one that ends with this process"
        ) from error
    except RuntimeError as error:
        text = str(error)
        if "ersion mismatch" in text:
            raise ClusterUnreachableError(
                f"the cluster at {address} runs other versions than this program: {text} Use the "
                "same Python and the same Ray on every node and here."
            ) from error
        raise ClusterUnreachableError(
            f"the cluster at {address} cannot be joined from here: {text}"
        ) from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"Ray refuses this: {error}") from error


def _addresses(address: str) -> list[str]:
    """Returns what `address` stands for, as host:port, as far as that can be known beforehand."""
    if address != "auto":
        return [address]
    named = os.environ.get("RAY_ADDRESS", "auto")
    if named != "auto":
        return [named]
    last_started = ray._private.services.find_bootstrap_address(None)
    return [last_started] if last_started else []  # else Ray looks for processes, fast


def _probe(address: str) -> None:
    """Looks whether anybody listens there: Ray itself would try for minutes, then end the process.

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
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S) as sock:
            if "RAY_USE_TLS" in os.environ:
                return
            sock.sendall(_HTTP2_PREFACE)
            if sock.recv(4)[3:] == _HTTP2_SETTINGS:
                return
        reason = "something else listens there"
    except OSError as error:
        reason = str(error)
    raise ClusterUnreachableError(
        f"no Ray cluster answers at {address} ({reason}). `ray start --head` prints the address "
        "of its cluster; `ray status` tells whether it runs"
    )
