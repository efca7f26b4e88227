"""Options of Ray Data's executor, which programs may set, and which change nothing here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

NodeIdStr: TypeAlias = str


@dataclass
class ExecutionResources:
    """Resources that Ray's executor may use; dray reads in the processes that ask for rows.

    Attributes:
        cpu: CPUs.
        gpu: GPUs.
        object_store_memory: Bytes of Ray's object store.
        memory: Bytes of memory.
    """

    cpu: float | None = None
    gpu: float | None = None
    object_store_memory: float | None = None
    memory: float | None = None


@dataclass
class ExecutionOptions:
    """Options of Ray's executor, such as `DataConfig(execution_options=...)` takes.

    Attributes:
        resource_limits: Those that it may use.
        exclude_resources: Those that it may not use.
        locality_with_output: Nodes on which rows are to be made.
        preserve_order: Whether rows keep their order; they always do here.
        actor_locality_enabled: Whether work goes where its rows are.
        verbose_progress: Whether each operation has a progress bar.
    """

    resource_limits: ExecutionResources = field(default_factory=ExecutionResources)
    exclude_resources: ExecutionResources = field(default_factory=ExecutionResources)
    locality_with_output: bool | list[str] = False
    preserve_order: bool = False
    actor_locality_enabled: bool = True
    verbose_progress: bool = True
