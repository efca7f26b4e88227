"""The description of a run in run.json: enough to know what ran, on what, and what ran before."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import platform
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from dray.errors import NoRunError, StorageError, join_names
from dray.train.backend import BackendConfig
from dray.train.config import RunConfig
from dray.train.scaling import ScalingConfig
from dray.train.storage.run_directory import RunDirectory
from dray.version import VERSION

_HISTORY = "history"
_MOST_KEPT = 100
# What makes another training of it, unlike how often it restarts.
_COMPARED = ("scaling_config", "checkpoint_config", "backend", "report_barrier")


def describe(
    engine: str,
    function: Callable[..., Any],
    scaling: ScalingConfig,
    config: RunConfig,
    backend: BackendConfig,
) -> dict[str, Any]:
    """Return what run.json says of a run that starts now."""
    return {
        "format": 1,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "engine": engine,
        "versions": {"dray": VERSION, "python": platform.python_version()},
        "train_function": _fingerprint(function),
        "scaling_config": {**_fields(scaling), "resources_per_worker": scaling.bundle},
        "failure_config": _fields(config.failure_config),
        "checkpoint_config": _fields(config.checkpoint_config),
        "report_barrier": config.report_barrier,
        "backend": type(backend).__name__,
    }


def read(directory: RunDirectory) -> dict[str, Any] | None:
    """Return what run.json says; None if there is none, or none that can be read."""
    try:
        return directory.read_run()
    except NoRunError:
        return None
    except StorageError as error:
        directory.warn_once(f"{error}; what it said of earlier times is lost")
        return None


def with_history(
    description: Mapping[str, Any], before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a description with those of the times before, under the same name.

    Args:
        description: What runs now.
        before: What run.json says; None if there is none, or none that can be read.
    """
    if before is None:
        return dict(description)
    earlier = before.get(_HISTORY)
    last = {name: value for name, value in before.items() if name != _HISTORY}
    times = [*(earlier if isinstance(earlier, list) else ()), last]
    return {**description, _HISTORY: times[-_MOST_KEPT:]}


def differences(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Return, in words, in what another training ran before under the same name."""
    if before is None:
        return []
    found = []
    old, new = before.get("train_function"), now["train_function"]
    if isinstance(old, Mapping) and old != new:
        same_name = old.get("name") == new["name"]
        found.append(
            f"train function {new['name']!r} has changed since"
            if same_name
            else f"train function was another one ({old.get('name')!r}, and now {new['name']!r})"
        )
    again = json.loads(json.dumps({name: now[name] for name in _COMPARED}, default=repr))
    changed = [name for name in _COMPARED if name in before and before[name] != again[name]]
    if changed:
        verb = "was" if len(changed) == 1 else "were"
        found.append(f"{join_names(changed)} {verb} another")
    return [" and whose ".join(found)] if found else []


def _fields(config: Any) -> dict[str, Any]:
    """Return the fields as they are; `dataclasses.asdict` copies what may not be copied."""
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.repr}


def _fingerprint(function: Callable[..., Any]) -> dict[str, str | None]:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return {"name": getattr(function, "__qualname__", repr(function)), "sha256": None}
    return {
        "name": getattr(function, "__qualname__", repr(function)),
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
    }
