"""Progress bars of tqdm with the arguments of Ray's; any worker may show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dray.checks import require
from dray.compat.attributes import attach_getattr

require("tqdm", "tqdm")

import tqdm as package  # noqa: E402

__all__ = ["safe_print", "tqdm"]

attach_getattr(__name__)


class tqdm(package.tqdm):  # type: ignore[misc]
    """A progress bar; an actor of this class is one that tasks share.

    Args:
        iterable: Items to go through, if any.
        desc: Text before the bar.
        total: Number of items, if the iterable has no length.
        unit: Word for one item.
        position: Line of the bar, where there are several.
        flush_interval_s: Seconds between two updates of the screen.

    Example:
        >>> import dray
        >>> from dray.experimental import tqdm_ray
        >>> bar = dray.remote(tqdm_ray.tqdm).remote(total=2, desc="downloads")
        >>> _ = bar.update.remote(1)
        >>> dray.get(bar.close.remote())
    """

    def __init__(
        self,
        iterable: Iterable[Any] | None = None,
        desc: str | None = None,
        total: int | None = None,
        unit: str | None = None,
        position: int | None = None,
        flush_interval_s: float | None = None,
    ) -> None:
        super().__init__(
            iterable,
            desc,
            total,
            unit=unit or "it",
            position=position,
            mininterval=0.1 if flush_interval_s is None else flush_interval_s,
        )


def safe_print(*values: object, **options: Any) -> None:
    """Print beside the bars of this process, and not into them.

    Args:
        values: Values to print.
        options: Arguments of `print`.

    Example:
        >>> from dray.experimental import tqdm_ray
        >>> tqdm_ray.safe_print("a", "b", sep="-")
        a-b
    """
    with package.tqdm.external_write_mode():
        print(*values, **options)
