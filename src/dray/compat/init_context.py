"""The context that `dray.init` returns, with the members of Ray's context."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dray.version import VERSION

if TYPE_CHECKING:
    from dray.engines.runtime import Runtime


class Context(Mapping[str, Any]):
    """The session that `dray.init` has started; a `with` statement ends the session at its end.

    Attributes:
        dashboard_url: None; there is no dashboard.
        python_version: The version of Python in this process.
        ray_version: The version of dray, under Ray's name for its version.

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
        """The node of this process, and the cluster's address; entries that dray lacks are None."""
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
