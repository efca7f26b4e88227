"""The description of a run in run.json: its configuration, environment and earlier starts."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from dray.checks import plain, spec_of
from dray.errors import NoRunError, StorageError
from dray.train.backend import BackendConfig
from dray.train.config import RunConfig
from dray.train.scaling import ScalingConfig
from dray.train.storage.run_directory import RunDirectory
from dray.version import VERSION

_HISTORY = "history"
_MOST_KEPT = 100
_SHA256 = "sha256:"
# Fields that make it another training if they differ, unlike how often it restarts.
_COMPARED = (
    *("train_loop_config", "scaling_config", "checkpoint_config", "backend", "report_barrier"),
    "versions",
)


def describe(
    engine: str,
    function: Callable[..., object],
    function_config: Mapping[str, object],
    scaling: ScalingConfig,
    config: RunConfig,
    backend: BackendConfig,
) -> dict[str, object]:
    """Return what run.json says of a run that starts now."""
    return {
        "format": 1,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "engine": engine,
        "versions": {
            "dray": VERSION,
            "python": platform.python_version(),
            **_versions(backend.modules),
        },
        "train_function": _fingerprint(function),
        "train_loop_config": _comparable(function_config),
        "scaling_config": {**_fields(scaling), "resources_per_worker": scaling.bundle},
        "failure_config": _fields(config.failure_config),
        "checkpoint_config": _fields(config.checkpoint_config),
        "report_barrier": config.report_barrier,
        "backend": type(backend).__name__,
    }


def read(directory: RunDirectory) -> dict[str, object] | None:
    """Return what run.json says; None if there is none, or none that can be read."""
    try:
        return directory.read_run()
    except NoRunError:
        return None
    except StorageError as error:
        directory.warn_once(f"{error}; its record of earlier starts is lost")
        return None


def with_history(
    description: Mapping[str, object], before: Mapping[str, object] | None
) -> dict[str, object]:
    """Return a description with those of the times before, under the same name.

    Args:
        before: Contents of run.json; None if there is none, or none that can be read.
    """
    if before is None:
        return dict(description)
    earlier = before.get(_HISTORY)
    last = {name: value for name, value in before.items() if name != _HISTORY}
    times = [*(earlier if isinstance(earlier, list) else ()), last]
    return {**description, _HISTORY: times[-_MOST_KEPT:]}


def differences(before: Mapping[str, object] | None, now: Mapping[str, Any]) -> list[str]:
    """Return, in words, what has changed since another training ran under the same name."""
    if before is None:
        return []
    found = []
    old, new = before.get("train_function"), now["train_function"]
    if isinstance(old, Mapping) and old.get("name") != new["name"]:
        found.append(f"the train function was {old.get('name')!r}, and is {new['name']!r} now")
    elif isinstance(old, Mapping) and _differ(old.get("sha256"), new["sha256"]):
        found.append(f"the train function {new['name']!r} has changed")
    again = json.loads(json.dumps({name: now[name] for name in _COMPARED}, default=repr))
    for name in _COMPARED:
        if name in before:
            found += _changed(name, before[name], again[name])
    return found


def _differ(digest: object, other: object) -> bool:
    """Return whether digests differ; None is of what could not be read, as of `python -`."""
    return digest is not None and other is not None and digest != other


def _changed(name: str, before: object, now: object) -> Iterator[str]:
    """Yield in words in what two values as JSON has them differ."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*before, *now)):
            yield from _changed(f"{name}.{key}", before.get(key), now.get(key))
    elif before != now and str(before).startswith(_SHA256) and str(now).startswith(_SHA256):
        yield f"{name} has another text now"
    elif before != now:
        yield f"{name} was {before!r}, and is {now!r} now"


def _versions(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages that modules belong to, as far as their folders say them."""
    found = {}
    for package in sorted({name.partition(".")[0] for name in modules} - {"dray"}):
        spec = spec_of(package)  # importlib.metadata takes 30 ms to load and ask
        if spec is not None and spec.origin is not None:
            beside = Path(spec.origin).parent.parent
            for path in beside.glob(f"{package}-*.dist-info"):
                found[package] = path.stem.removeprefix(f"{package}-")
    return found


def _fields(config: Any) -> dict[str, object]:
    """Return the fields as they are; `dataclasses.asdict` copies what may not be copied."""
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.repr}


def _comparable(config: Mapping[str, object]) -> dict[str, object]:
    """Return the comparable values of the function's config; of texts, which may be secret, a hash.

    Other values, such as objects and long lists, are left out.
    """
    found: dict[str, object] = {}
    for name, value in config.items():
        value = plain(value)
        if isinstance(value, Mapping):
            found[str(name)] = _comparable(value)
        elif isinstance(value, str):
            found[str(name)] = _SHA256 + _digest(value)
        elif value is None or isinstance(value, int):
            found[str(name)] = value
        elif isinstance(value, float):
            found[str(name)] = value if math.isfinite(value) else repr(value)
    return found


def _fingerprint(function: Callable[..., object]) -> dict[str, str | None]:
    while isinstance(function, functools.partial):
        function = function.func
    source_of = function if hasattr(function, "__qualname__") else type(function)
    name = source_of.__qualname__
    try:
        source = inspect.getsource(source_of)
    except (OSError, TypeError):
        return {"name": name, "sha256": None}
    return {"name": name, "sha256": _digest(source)}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
