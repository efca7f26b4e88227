"""Slices of Google's TPUs: the topologies of each generation, and the resources of their hosts."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from dray.accelerators.node_names import (
    POD_TYPE_LABEL,
    SLICE_NAME_LABEL,
    TOPOLOGY_LABEL,
    WORKER_ID_LABEL,
)
from dray.accelerators.type_names import near_types
from dray.errors import ConfigError

_HOST_OF_LARGE_SLICES = 4


class Generation(NamedTuple):
    """A generation of TPUs: the facts that all its slices have in common.

    Source: Google Cloud's documentation of TPUs, one page for each generation, such as
    https://cloud.google.com/tpu/docs/v6e. The valid topologies are those of Ray 2.60: topologies of
    v4 and v5p may have their sides in any order, and those of v2 and v3 begin with 4x4.

    Attributes:
        word: The generation's name in pod types.
        cores_per_chip: Number of cores of a chip, because pod types count cores.
        largest_host: A slice of at most so many chips is on one host; a larger slice has hosts of
            four chips.
        shapes: The topologies, except those of `blocks`.
        blocks: The largest topology AxBxC, if all topologies are valid whose sides are multiples of
            4 up to these; None otherwise.
    """

    word: str
    cores_per_chip: int
    largest_host: int
    shapes: str
    blocks: tuple[int, int, int] | None = None

    @property
    def accelerator_type(self) -> str:
        """The value for `accelerator_type=`, such as "TPU-V6E"."""
        return f"TPU-{self.word.upper()}"

    @property
    def topologies(self) -> tuple[str, ...]:
        """All valid topologies; the order of the sides matters."""
        sides = [range(4, side + 1, 4) for side in self.blocks or ()]
        blocks = itertools.product(*sides) if sides else ()
        return (*self.shapes.split(), *("x".join(map(str, block)) for block in blocks))


_FLAT = "4x4 4x8 8x8 8x16 16x16"
_SMALL = "2x2x1 2x2x2 2x2x4 2x4x4"
_ONE_CORE = f"1x1 2x2 2x4 2x8 {_FLAT}"

GENERATIONS = (
    Generation("v2", 2, 4, _FLAT),
    Generation("v3", 2, 4, f"{_FLAT} 16x32 32x32"),
    Generation("v4", 2, 4, _SMALL, (12, 12, 16)),
    Generation("v5p", 2, 4, _SMALL, (16, 16, 24)),
    Generation("v5litepod", 1, 8, _ONE_CORE),
    Generation("v6e", 1, 8, _ONE_CORE),
    Generation("v7x", 2, 4, f"{_SMALL} 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16"),
)


@dataclass(frozen=True)
class Slice:
    """The chips of one slice, and their hosts.

    Attributes:
        generation: Name of the generation, such as "v6e".
        topology: The topology, such as "4x4".
        chips_per_host: Number of chips of each host.

    Example:
        >>> from dray.accelerators.tpu_topology import Slice
        >>> slice = Slice.parse("4x4", "TPU-V6E")
        >>> slice.hosts, slice.chips_per_host, slice.pod_type
        (4, 4, 'v6e-16')
    """

    generation: str
    topology: str
    chips_per_host: int

    @classmethod
    def parse(cls, topology: str, accelerator_type: str, chips: float | None = None) -> Slice:
        """Return the slice that a user asks for.

        Args:
            topology: The topology, such as "4x4"; surrounding spaces and case do not matter.
            accelerator_type: The generation, such as "TPU-V6E".
            chips: Number of chips for each worker. Google Cloud makes some slices either of one
                large host or of several hosts of four chips; 4 selects the latter.

        Raises:
            ConfigError: There is no such generation, or it has no such topology.
        """
        generation = _generation(accelerator_type)
        if not isinstance(topology, str):
            raise ConfigError(f"topology must be text such as '4x4', not {topology!r}")
        shape = topology.strip().lower()
        if shape not in generation.topologies:
            raise ConfigError(
                f"topology={topology!r} is not a topology of "
                f"{generation.accelerator_type}{_near(shape, generation.topologies)}. "
                f"{_all_of(generation)}"
            )
        total, several = _chips(shape), _HOST_OF_LARGE_SLICES
        largest = several if chips == several else generation.largest_host
        return cls(generation.word, shape, total if total <= largest else several)

    @property
    def accelerator_type(self) -> str:
        """The type of the chips, such as "TPU-V6E"."""
        return self._generation.accelerator_type

    @property
    def chips(self) -> int:
        """The number of chips of the slice."""
        return _chips(self.topology)

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return self.chips // self.chips_per_host

    @property
    def pod_type(self) -> str:
        """Google Cloud's name for a slice of this size, such as "v6e-16"; it counts cores."""
        return f"{self.generation}-{self.chips * self._generation.cores_per_chip}"

    @property
    def _generation(self) -> Generation:
        return next(one for one in GENERATIONS if one.word == self.generation)


def head_resource(pod_type: str) -> str:
    """Return the name of the resource that only the first host of a slice offers.

    Args:
        pod_type: The pod type, such as "v6e-16".
    """
    return f"TPU-{pod_type}-head"


def host_resources(slice_name: str, worker: str, pod_type: str) -> dict[str, float]:
    """Return the resources by which programs request the hosts of one slice, or its first host.

    If one of the arguments is "", there are no such resources.

    Args:
        worker: Number of the host in the slice.
        pod_type: The pod type, such as "v6e-16".
    """
    if not (slice_name and worker and pod_type):
        return {}
    return {slice_name: 1.0, **({head_resource(pod_type): 1.0} if int(worker) == 0 else {})}


def host_labels(slice_name: str, worker: str, topology: str, pod_type: str) -> dict[str, str]:
    """Return the labels with a host's slice and its place in it; "" gives no label.

    Args:
        worker: Number of the host in the slice.
        topology: The topology, such as "4x4".
        pod_type: The pod type, such as "v6e-16".
    """
    labels = {
        SLICE_NAME_LABEL: slice_name,
        WORKER_ID_LABEL: worker,
        TOPOLOGY_LABEL: topology,
        POD_TYPE_LABEL: pod_type,
    }
    return {label: value for label, value in labels.items() if value}


def _generation(accelerator_type: object) -> Generation:
    by_type = {one.accelerator_type: one for one in GENERATIONS}
    if isinstance(accelerator_type, str) and accelerator_type in by_type:
        return by_type[accelerator_type]
    near = near_types(accelerator_type, tuple(by_type))
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    raise ConfigError(
        f"accelerator_type={accelerator_type!r} is not a generation of TPUs{hint} The "
        f"generations are {', '.join(by_type)}"
    )


def _chips(topology: str) -> int:
    return math.prod(int(side) for side in topology.split("x"))


def _near(wrong: str, topologies: tuple[str, ...]) -> str:
    """Return a hint at topologies with as many chips, or else with similar text or chip numbers."""
    import difflib

    if not re.fullmatch(r"[0-9]{1,4}(x[0-9]{1,4})*", wrong):
        near = difflib.get_close_matches(wrong, topologies, 3)
    else:
        distance = {one: abs(_chips(one) - _chips(wrong)) for one in topologies}
        near = [one for one in topologies if not distance[one]][:3]
        near = near or difflib.get_close_matches(wrong, topologies, 3) or list(topologies)
        near = sorted(near, key=distance.__getitem__)[:3]
    return f"; near ones: {', '.join(near)}" if near else ""


def _all_of(generation: Generation) -> str:
    shapes = ", ".join(generation.shapes.split())
    if generation.blocks is None:
        return f"Its topologies are {shapes}"
    largest = "x".join(map(str, generation.blocks))
    return (
        f"It has {len(generation.topologies)} topologies: {shapes}, and all AxBxC of multiples "
        f"of 4 up to {largest}"
    )
