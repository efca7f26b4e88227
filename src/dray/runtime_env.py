"""The module path `dray.runtime_env`: a runtime environment as an object, which is also a dict."""

from __future__ import annotations

from typing import Any

from dray.compat.attributes import attach_getattr, with_absent_members
from dray.engines import runtime_env
from dray.errors import ConfigError

__all__ = ["RuntimeEnv", "RuntimeEnvConfig"]

attach_getattr(__name__)


class RuntimeEnvConfig(dict[str, Any]):
    """Options for the set-up of a runtime environment on a cluster; Ray engine only.

    Args:
        setup_timeout_seconds: Time limit of the set-up in seconds; -1 is no limit.
        eager_install: Whether the set-up begins before the first task.
        log_files: Log files that Ray keeps of the set-up.

    Example:
        >>> from dray.runtime_env import RuntimeEnvConfig
        >>> RuntimeEnvConfig(setup_timeout_seconds=60)["setup_timeout_seconds"]
        60
    """

    def __init__(
        self,
        setup_timeout_seconds: int = 600,
        eager_install: bool = True,
        log_files: list[str] | None = None,
    ) -> None:
        if not isinstance(setup_timeout_seconds, int) or (
            setup_timeout_seconds < 1 and setup_timeout_seconds != -1
        ):
            raise ConfigError(
                "setup_timeout_seconds must be a whole number of seconds, 1 or more, or -1 for no "
                f"limit, not {setup_timeout_seconds!r}"
            )
        super().__init__(
            setup_timeout_seconds=setup_timeout_seconds,
            eager_install=bool(eager_install),
            log_files=log_files or [],
        )


@with_absent_members
class RuntimeEnv(dict[str, Any]):
    """The workers' environment: a value for `runtime_env=`, which is checked on construction.

    Args:
        **fields: `env_vars` and `working_dir`; also `pip`, `uv` and `py_modules`, which the Ray
            engine installs, and the other engines look for. The Ray engine takes Ray's other fields
            as well. A field that is None is left out.

    Raises:
        ConfigError: A field is unknown or malformed.

    Example:
        >>> from dray.runtime_env import RuntimeEnv
        >>> RuntimeEnv(env_vars={"OMP_NUM_THREADS": "1"}).env_vars()
        {'OMP_NUM_THREADS': '1'}
    """

    def __init__(self, *, _validate: bool = True, **fields: object) -> None:
        super().__init__({name: value for name, value in fields.items() if value is not None})
        if _validate:
            runtime_env.RuntimeEnv.parse(self, "RuntimeEnv")

    def env_vars(self) -> dict[str, str]:
        """Return the environment variables."""
        return dict(self.get("env_vars", {}))

    def working_dir(self) -> str:
        """Return the working directory; "" if there is none."""
        return str(self.get("working_dir", ""))

    def py_modules(self) -> list[str]:
        """Return the value of `py_modules`."""
        return list(self.get("py_modules", ()))

    def has_working_dir(self) -> bool:
        """Return whether there is a working directory."""
        return "working_dir" in self

    def has_pip(self) -> bool:
        """Return whether packages are installed by pip."""
        return "pip" in self

    def has_uv(self) -> bool:
        """Return whether packages are installed by uv."""
        return "uv" in self

    def has_conda(self) -> bool:
        """Return whether there is a conda environment."""
        return "conda" in self

    def set(self, name: str, value: object) -> None:
        """Set a field."""
        self[name] = value

    def to_dict(self) -> dict[str, Any]:
        """Return the environment as a plain dict."""
        return dict(self)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (dict(self),))


def _rebuild(fields: dict[str, object]) -> RuntimeEnv:
    return RuntimeEnv(_validate=False, **fields)
