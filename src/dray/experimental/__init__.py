"""The public paths below `ray.experimental` that programs use."""

from typing import TYPE_CHECKING

from dray.compat.attributes import attach_getattr

__all__: list[str] = []

attach_getattr(__name__, later=("tqdm_ray",))

if TYPE_CHECKING:
    from dray.experimental import tqdm_ray as tqdm_ray
