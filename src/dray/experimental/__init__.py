"""The public paths below `ray.experimental` that programs use."""

from dray.compat.attributes import attach_getattr

__all__: list[str] = []

attach_getattr(__name__, later=("tqdm_ray",))
