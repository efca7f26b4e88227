"""Counters, gauges and histograms that a program keeps; nothing exports them.

Each process keeps its own values, in the metric itself: `values` maps the tags' values to numbers.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from dray.compat.attributes import attach_getattr
from dray.errors import ConfigError

__all__ = ["Counter", "Gauge", "Histogram"]

attach_getattr(__name__)

V = TypeVar("V")


class _Metric(Generic[V]):
    """The base of all metrics.

    Args:
        name: Its name.
        description: Meaning of the metric.
        tag_keys: The names of its tags; a value is kept for each combination of their values.
    """

    def __init__(
        self, name: str, description: str = "", tag_keys: Sequence[str] | None = None
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a metric's name is a string that is not empty, not {name!r}")
        if isinstance(tag_keys, str) or not all(isinstance(key, str) for key in tag_keys or ()):
            raise ConfigError(f"tag_keys must be a list of strings, not {tag_keys!r}")
        self._name, self._description = name, description
        self._keys = tuple(tag_keys or ())
        self._default: dict[str, str] = {}
        self._lock = threading.Lock()
        self.values: dict[tuple[str, ...], V] = {}

    @property
    def info(self) -> dict[str, Any]:
        """Its name, description, names of tags, and default tags."""
        return {
            "name": self._name,
            "description": self._description,
            "tag_keys": self._keys,
            "default_tags": dict(self._default),
        }

    def set_default_tags(self, default_tags: Mapping[str, str]) -> _Metric[V]:
        """Set what tags are where a call does not say it; return the metric."""
        self._tags(default_tags)
        self._default = dict(default_tags)
        return self

    def _tags(self, tags: Mapping[str, str] | None) -> tuple[str, ...]:
        given = {**self._default, **(tags or {})}
        unknown = sorted(set(given) - set(self._keys))
        if unknown:
            raise ConfigError(f"{self._name} has no tags {unknown}; name them in tag_keys")
        return tuple(given.get(key, "") for key in self._keys)

    def __reduce__(self) -> tuple[object, ...]:
        made = (self._name, self._description, self._keys)
        return (type(self), made, {"_default": self._default})


class Counter(_Metric[float]):
    """A number that only grows.

    Attributes:
        values: The tags' values, in the order of `tag_keys`, to the number.

    Example:
        >>> from dray.util.metrics import Counter
        >>> count = Counter("requests", tag_keys=("path",))
        >>> count.inc(2, tags={"path": "/"})
        >>> count.values
        {('/',): 2}
    """

    def inc(self, value: float = 1.0, tags: Mapping[str, str] | None = None) -> None:
        """Add to it; the value is above 0."""
        if value <= 0:
            raise ConfigError(f"a counter grows by a number above 0, not by {value!r}")
        key = self._tags(tags)
        with self._lock:
            self.values[key] = self.values.get(key, 0) + value


class Gauge(_Metric[float]):
    """A number that goes up and down.

    Attributes:
        values: The tags' values, in the order of `tag_keys`, to the number.

    Example:
        >>> from dray.util.metrics import Gauge
        >>> depth = Gauge("queue_depth")
        >>> depth.set(3)
        >>> depth.values
        {(): 3}
    """

    def set(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Set it."""
        self.values[self._tags(tags)] = value


class Histogram(_Metric[list[int]]):
    """Counts of values between boundaries.

    Args:
        name: Its name.
        description: Meaning of the metric.
        boundaries: Growing numbers above 0.
        tag_keys: The names of its tags.

    Attributes:
        values: The tags' values to the count of each bucket, the last one beyond all boundaries.

    Example:
        >>> from dray.util.metrics import Histogram
        >>> latency = Histogram("latency_s", boundaries=[0.1, 1.0])
        >>> latency.observe(0.25)
        >>> latency.values
        {(): [0, 1, 0]}
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: Sequence[float] | None = None,
        tag_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, description, tag_keys)
        self.boundaries = list(boundaries or ())
        growing = sorted(self.boundaries) == self.boundaries
        if not self.boundaries or self.boundaries[0] <= 0 or not growing:
            raise ConfigError(f"boundaries must be growing numbers above 0, not {boundaries!r}")

    def observe(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Count a value."""
        key = self._tags(tags)
        with self._lock:
            counts = self.values.setdefault(key, [0] * (len(self.boundaries) + 1))
            counts[bisect.bisect_left(self.boundaries, value)] += 1

    def __reduce__(self) -> tuple[object, ...]:
        made = (self._name, self._description, self.boundaries, self._keys)
        return (type(self), made, {"_default": self._default})
