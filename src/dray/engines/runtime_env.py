"""The runtime environment: variables and directory of workers, under the names that Ray uses."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dray.errors import ArgumentTypeError, ConfigError, join_names

# The fields that every engine can make; the rest needs one that installs software on nodes.
_EVERYWHERE = ("env_vars", "working_dir")
# Choices for carrying files to nodes and installing software there.
_NOTHING_HERE = ("excludes", "config")
_ON_A_CLUSTER = ("py_modules", "pip", "uv", "conda", "container", "image_uri", "excludes", "config")

# Names of variables within values; those in capitals and braces that are not set are left out.
_NAME = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)
_UNSET = re.compile(r"\$\{[A-Z0-9_]+\}")


@dataclass(frozen=True)
class RuntimeEnv:
    """The environment of a worker.

    Attributes:
        env_vars: Environment variables; their values may name others, as `${PATH}`.
        working_dir: The directory it runs in, and imports from; None leaves it to the engine.
        further: Everything else, as the user gave it.
    """

    env_vars: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    further: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Mapping[str, Any] | None, what: str) -> RuntimeEnv:
        """Return the runtime environment that a user's dict describes.

        Args:
            value: Such as `{"env_vars": {"A": "1"}, "working_dir": "."}`.

        Raises:
            ConfigError: It is malformed, or has a key that does not exist.
        """
        if value is None:
            return cls()
        if not isinstance(value, Mapping):
            raise ArgumentTypeError(f"{what} must be a dict, not a {type(value).__name__}")
        fields = dict(value)
        unknown = sorted(map(str, set(fields) - {*_EVERYWHERE, *_ON_A_CLUSTER}))
        if unknown:
            raise ConfigError(
                f"{what} has no {join_names(unknown)}; there are "
                f"{join_names((*_EVERYWHERE, *_ON_A_CLUSTER))}"
            )
        variables = fields.pop("env_vars", None) or {}
        if not isinstance(variables, Mapping):
            raise ArgumentTypeError(
                f"{what}['env_vars'] must be a dict, not a {type(variables).__name__}"
            )
        for name, text in variables.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise ArgumentTypeError(
                    f"{what}['env_vars'] must map strings to strings, not {name!r} to a value of "
                    f"{type(text).__name__}"
                )
            if not name or "=" in name or "\0" in name + text:
                raise ConfigError(
                    f"{what}['env_vars'] has {name!r}, which no environment can hold: "
                    "names are not empty and have no '=', and neither names nor values have a null "
                    "character"
                )
        directory = fields.pop("working_dir", None)
        if not isinstance(directory, str | os.PathLike | None):
            raise ArgumentTypeError(
                f"{what}['working_dir'] must be the path of a directory, not {directory!r}"
            )
        return cls(dict(variables), None if directory is None else os.fspath(directory), fields)

    def __or__(self, other: RuntimeEnv) -> RuntimeEnv:
        """Return this one with another on top: variables are merged, the rest is replaced."""
        return RuntimeEnv(
            {**self.env_vars, **other.env_vars},
            other.working_dir or self.working_dir,
            {**self.further, **other.further},
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as the dict that a user would write; empty if it asks for nothing."""
        directory = {} if self.working_dir is None else {"working_dir": self.working_dir}
        variables = {"env_vars": dict(self.env_vars)} if self.env_vars else {}
        return {**variables, **directory, **self.further}

    def expanded(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return its variables as a process gets them, with the values of those that they name.

        Args:
            environment: The process's variables without them.
        """
        known = dict(environment)
        for name, text in sorted(self.env_vars.items()):  # in Ray's order
            told = _NAME.sub(lambda found: known.get(found[1] or found[2], found[0]), text)
            known[name] = _UNSET.sub("", told)
        return {name: known[name] for name in self.env_vars}

    def here(self) -> RuntimeEnv:
        """Return what a process that runs already can have of it: variables, and a directory."""
        local = self.working_dir is not None and os.path.isdir(os.path.expanduser(self.working_dir))
        return RuntimeEnv(self.env_vars, self.working_dir if local else None)

    def local_directory(self, engine: str) -> str | None:
        """Return the working directory, for an engine that runs on this machine alone.

        Raises:
            ConfigError: Something is asked for that such an engine cannot make.
        """
        self._check_local(engine)
        if self.working_dir is None:
            return None
        path = os.path.expanduser(self.working_dir)
        if not os.path.isdir(path):
            raise ConfigError(
                f"runtime_env['working_dir'] is {self.working_dir!r}, which is not a directory "
                f"of this machine; the {engine} engine accepts only such a directory"
            )
        return os.path.realpath(path)

    def _check_local(self, engine: str) -> None:
        """Raise ConfigError if it asks for what the driver's own Python environment lacks."""
        further = {key: asked for key, asked in self.further.items() if key not in _NOTHING_HERE}
        if not further:
            return
        from dray.engines.local_packages import missing_modules, missing_packages

        lacking = []
        for key, asked in further.items():
            if key in ("pip", "uv"):
                lacking += missing_packages(asked, f"runtime_env[{key!r}]")
            elif key == "py_modules":
                lacking += missing_modules(asked, f"runtime_env[{key!r}]")
            else:
                lacking.append(key)
        if lacking:
            raise ConfigError(
                f"the {engine} engine uses the Python environment that the driver runs in, which "
                f"does not have what runtime_env asks for: {join_names(lacking)}. Install it here, "
                "put modules on the import path, or use dray.init(engine='ray')"
            )
