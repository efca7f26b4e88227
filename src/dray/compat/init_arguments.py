"""Arguments of `ray.init` that are not parameters of `dray.init`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dray.compat.arguments import check_arguments
from dray.errors import ConfigError

_logger = logging.getLogger("dray")

# Arguments for a Ray cluster that `init` starts, with Ray's defaults; other engines ignore them.
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
    """Return the arguments for a Ray cluster whose values differ from Ray's defaults.

    Args:
        given: Arguments of the call that are not parameters of `dray.init`.

    Raises:
        AbsentArgumentError: An argument is unknown.
    """
    unknown = {name: value for name, value in given.items() if name not in OF_A_CLUSTER}
    check_arguments("dray.init", unknown, (*known, *OF_A_CLUSTER))
    return {
        name: value
        for name, value in given.items()
        if name in OF_A_CLUSTER and value != OF_A_CLUSTER[name]
    }


def say_without_meaning(names: list[str], engine: str) -> None:
    """Log, at debug level, the arguments that have no effect on an engine."""
    if names:
        _logger.debug(
            "dray.init: these arguments have no effect on the %s engine: %s",
            engine,
            ", ".join(names),
        )


def set_log_level(level: int | str | None) -> None:
    """Set the level of dray's own logging.

    Args:
        level: A level of `logging`, in upper or lower case; None changes nothing.
    """
    if level is None:
        return
    try:
        _logger.setLevel(level.upper() if isinstance(level, str) else level)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"logging_level must be a level of logging, such as 'info', not {level!r}"
        ) from error
