"""Ray's arguments of `dray.init` that engines do not ask for, and the context that it returns."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dray.answers import check_arguments
from dray.errors import ConfigError
from dray.version import VERSION

if TYPE_CHECKING:
    from dray.engines.runtime import Runtime

_logger = logging.getLogger("dray")

# Arguments for a cluster of Ray's that is started here, with Ray's defaults; others ignore them.
OF_A_CLUSTER: Mapping[str, object] = {
    "include_dashboard": None,
    "dashboard_host": "127.0.0.1",
    "dashboard_port": None,
    "enable_resource_isolation": False,
    "cgroup_path": None,
    "system_reserved_cpu": None,
    "system_reserved_memory": None,
    "proxy_server_url": None,
    "_temp_dir": None,
    "_system_config": None,
    "_node_ip_address": None,
    "_node_name": None,
    "_metrics_export_port": None,
    "_plasma_directory": None,
    "object_spilling_directory": None,
    "_driver_object_store_memory": None,
    "_enable_object_reconstruction": False,
    "_redis_username": "default",
    "_redis_password": None,
    "_skip_env_hook": False,
}


def chosen_of_a_cluster(given: Mapping[str, object], known: tuple[str, ...]) -> dict[str, object]:
    """Return what is meant for a cluster of Ray's, without what is as Ray has it anyway.

    Args:
        given: Arguments of `dray.init` that no engine asks for.
        known: The names of its other arguments, for messages.

    Raises:
        AbsentArgumentError: One is unknown.
    """
    unknown = {name: value for name, value in given.items() if name not in OF_A_CLUSTER}
    check_arguments("dray.init", unknown, (*known, *OF_A_CLUSTER))
    return {
        name: value
        for name, value in given.items()
        if name in OF_A_CLUSTER and value != OF_A_CLUSTER[name]
    }


def say_without_meaning(names: list[str], engine: str) -> None:
    """Log, for who looks, which arguments do nothing on an engine."""
    if names:
        _logger.debug("dray.init: without meaning on the %s engine: %s", engine, ", ".join(names))


def set_log_level(level: int | str | None) -> None:
    """Set what dray itself logs.

    Args:
        level: As in `logging`, in small letters too; None leaves it as it is.

    Raises:
        ConfigError: There is no such level.
    """
    if level is None:
        return
    try:
        _logger.setLevel(level.upper() if isinstance(level, str) else level)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"logging_level must be a level of logging, such as 'info', not {level!r}"
        ) from error


class Context(Mapping[str, Any]):
    """The session that `dray.init` has begun; in a `with` statement it ends with that.

    Attributes:
        dashboard_url: None; there is no dashboard.
        python_version: Of this process.
        ray_version: The version of dray, under the name that Ray has for its own.

    Example:
        >>> import dray
        >>> with dray.init(num_cpus=2) as context:
        ...     dray.cluster_resources()["CPU"]
        2
    """

    dashboard_url: str | None = None
    ray_commit = ""

    def __init__(self, runtime: Callable[[], Runtime], end: Callable[[], None]) -> None:
        self._runtime = runtime
        self._end = end
        self._info: dict[str, Any] | None = None
        self.python_version = ".".join(map(str, sys.version_info[:3]))
        self.ray_version = VERSION

    @property
    def address_info(self) -> dict[str, Any]:
        """The node of this process, and the cluster's address; None for what there is not."""
        if self._info is None:
            runtime = self._runtime()
            here = runtime.execution_context()
            own = (node for node in runtime.nodes() if node["NodeID"] == here.node_id)
            self._info = {
                "node_id": here.node_id,
                "node_ip_address": next(own, {"NodeManagerAddress": None})["NodeManagerAddress"],
                "address": here.cluster or None,
                "gcs_address": here.cluster or None,
                "session_dir": here.directory or None,
                "temp_dir": here.directory or None,
                "webui_url": self.dashboard_url,
                "redis_address": None,
                "object_store_address": None,
                "raylet_socket_name": None,
                "metrics_export_port": None,
                "dashboard_agent_listen_port": None,
            }
        return dict(self._info)

    def disconnect(self) -> None:
        """End the session, as `dray.shutdown()` does."""
        self._end()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def __getitem__(self, name: str) -> Any:
        return self.address_info[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.address_info)

    def __len__(self) -> int:
        return len(self.address_info)

    def __repr__(self) -> str:
        return f"Context(dray {self.ray_version}, Python {self.python_version})"

    def _repr_html_(self) -> str:
        return f"<code>{self!r}</code>"
