"""The path `dray.runtime_env`: a runtime environment as an object, which is also a dict."""

from __future__ import annotations

from typing import Any

from dray.compat.attributes import attach_getattr, with_absent_members
from dray.engines import runtime_env
from dray.errors import ConfigError

__all__ = ["RuntimeEnv", "RuntimeEnvConfig"]

attach_getattr(__name__)


class RuntimeEnvConfig(dict[str, Any]):
    """Settings of how a cluster makes a runtime environment; Ray engine only.

    Args:
        setup_timeout_seconds: Limit in seconds for the set-up; -1 is without limit.
        eager_install: Whether it begins before the first task.
        log_files: Log files that Ray keeps of it.

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
    """The workers' environment: the value of `runtime_env=`, checked where it is made.

    Args:
        **fields: `env_vars` and `working_dir`; `pip`, `uv` and `py_modules`, which the Ray engine
            installs, and others look for; on the Ray engine what else Ray knows. None is as if
            left out.

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
        """Return its environment variables."""
        return dict(self.get("env_vars", {}))

    def working_dir(self) -> str:
        """Return its directory; empty if it names none."""
        return str(self.get("working_dir", ""))

    def py_modules(self) -> list[str]:
        """Return the modules that it brings."""
        return list(self.get("py_modules", ()))

    def has_working_dir(self) -> bool:
        """Return whether it names a directory."""
        return "working_dir" in self

    def has_pip(self) -> bool:
        """Return whether it brings packages by pip."""
        return "pip" in self

    def has_uv(self) -> bool:
        """Return whether it brings packages by uv."""
        return "uv" in self

    def has_conda(self) -> bool:
        """Return whether it brings an environment of conda's."""
        return "conda" in self

    def set(self, name: str, value: object) -> None:
        """Set a field."""
        self[name] = value

    def to_dict(self) -> dict[str, Any]:
        """Return it as a plain dict."""
        return dict(self)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (dict(self),))


def _rebuild(fields: dict[str, object]) -> RuntimeEnv:
    return RuntimeEnv(_validate=False, **fields)
