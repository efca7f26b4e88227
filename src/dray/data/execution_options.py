"""Options of Ray Data's executor; programs may set them, but dray does not use them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

NodeIdStr: TypeAlias = str


@dataclass
class ExecutionResources:
    """Resources that Ray's executor may use; dray reads in the processes that request rows.

    Attributes:
        cpu: CPUs.
        gpu: GPUs.
        object_store_memory: Bytes of Ray's object store.
        memory: Bytes of memory.

    Example:
        >>> from dray.data import ExecutionResources
        >>> ExecutionResources.for_limits(cpu=4).copy(gpu=1)
        ExecutionResources(cpu=4, gpu=1, object_store_memory=inf, memory=inf)
    """

    cpu: float | None = None
    gpu: float | None = None
    object_store_memory: float | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                setattr(self, name, 0.0)

    @classmethod
    def zero(cls) -> ExecutionResources:
        """Return resources of 0."""
        return cls()

    @classmethod
    def for_limits(
        cls,
        cpu: float | None = None,
        gpu: float | None = None,
        object_store_memory: float | None = None,
        memory: float | None = None,
    ) -> ExecutionResources:
        """Return limits; a resource that is not given has no limit."""
        return cls(*[math.inf] * 4).copy(cpu, gpu, object_store_memory, memory)

    def copy(
        self,
        cpu: float | None = None,
        gpu: float | None = None,
        object_store_memory: float | None = None,
        memory: float | None = None,
    ) -> ExecutionResources:
        """Return a copy in which the given resources are replaced."""
        given = (cpu, gpu, object_store_memory, memory)
        own = vars(self).values()
        amounts = zip(given, own, strict=True)
        return ExecutionResources(*(new if new is not None else old for new, old in amounts))


@dataclass
class ExecutionOptions:
    """Options of Ray's executor, such as those of `DataConfig(execution_options=...)`.

    Attributes:
        resource_limits: The resources that the executor may use; None is no limit.
        exclude_resources: The resources that the executor may not use; None is none.
        locality_with_output: The nodes on which rows are to be produced.
        preserve_order: Whether rows keep their order; in dray they always do.
        actor_locality_enabled: Whether work is sent to the node of its rows.
        verbose_progress: Whether each operation has a progress bar.
    """

    resource_limits: ExecutionResources | None = field(
        default_factory=ExecutionResources.for_limits
    )
    exclude_resources: ExecutionResources | None = field(default_factory=ExecutionResources)
    locality_with_output: bool | list[str] = False
    preserve_order: bool = False
    actor_locality_enabled: bool = True
    verbose_progress: bool = True

    def __post_init__(self) -> None:
        if self.resource_limits is None:
            self.resource_limits = ExecutionResources.for_limits()
        if self.exclude_resources is None:
            self.exclude_resources = ExecutionResources()

    def is_resource_limits_default(self) -> bool:
        """Return whether there are no limits."""
        return self.resource_limits == ExecutionResources.for_limits()
