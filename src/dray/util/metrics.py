"""Counters, gauges and histograms that a program keeps; nothing exports them.

Each process keeps its own values, in the metric itself: `values` maps the tags' values to numbers.
"""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dray.checks import plain
from dray.compat.attributes import attach_getattr
from dray.errors import ArgumentTypeError, ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Counter", "Gauge", "Histogram"]

attach_getattr(__name__)

V = TypeVar("V")


class _Metric(Generic[V]):
    """The base of all metrics.

    Args:
        tag_keys: The names of its tags; a value is kept for each combination of their values.
    """

    def __init__(
        self, name: str, description: str = "", tag_keys: Sequence[str] | None = None
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a metric's name must be a non-empty string, not {name!r}")
        if isinstance(tag_keys, str) or not all(isinstance(key, str) for key in tag_keys or ()):
            raise ArgumentTypeError(f"tag_keys must be a list of strings, not {tag_keys!r}")
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

    def set_default_tags(self, default_tags: Mapping[str, str]) -> Self:
        """Set what tags are where a call does not say it; return the metric."""
        unknown = sorted(set(default_tags) - set(self._keys))
        if unknown:
            raise ConfigError(f"{self._name} has no tags {unknown}; name them in tag_keys")
        self._default = self._checked(default_tags)
        return self

    def _tags(self, tags: Mapping[str, str] | None) -> tuple[str, ...]:
        """Return the values of the tags; other tags that a call names are ignored, as by Ray."""
        given = {**self._default, **self._checked(tags or {})}
        missing = [key for key in self._keys if key not in given]
        if missing:
            raise ConfigError(f"{self._name} has no value for the tags {missing}")
        return tuple(given[key] for key in self._keys)

    def _checked(self, tags: Mapping[str, str]) -> dict[str, str]:
        for key, value in tags.items():
            if not isinstance(value, str):
                raise ArgumentTypeError(f"{self._name}: tag {key} is a string, not {value!r}")
        return dict(tags)

    def _number(self, value: object) -> float:
        number: object = plain(value)
        if not isinstance(number, int | float):
            raise ArgumentTypeError(f"{self._name} takes numbers, not {value!r}")
        return number

    def __reduce__(self) -> tuple[object, ...]:
        made = self.info
        default = made.pop("default_tags")
        return (functools.partial(type(self), **made), (), {"_default": default})


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
        value = self._number(value)
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

    def set(self, value: float | None, tags: Mapping[str, str] | None = None) -> None:
        """Set it; None leaves it as it is."""
        if value is not None:
            self.values[self._tags(tags)] = self._number(value)


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

    @property
    def info(self) -> dict[str, Any]:
        """Its name, description, names of tags, default tags, and boundaries."""
        return {**super().info, "boundaries": self.boundaries}

    def observe(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Count a value."""
        key = self._tags(tags)
        bucket = bisect.bisect_left(self.boundaries, self._number(value))
        with self._lock:
            counts = self.values.setdefault(key, [0] * (len(self.boundaries) + 1))
            counts[bucket] += 1
