"""Shapes of the findings of `dray doctor`, as `--json` prints them."""

from __future__ import annotations

from typing import TypedDict


class SharedMemory(TypedDict):
    """The file system /dev/shm; its size is None where it cannot be told."""

    is_there: bool
    bytes: int | None


class TemporaryDirectory(TypedDict):
    """The directory that was asked for, by which variable, and the one that Python uses."""

    variable: str | None
    wanted: str
    used: str | None


class Machine(TypedDict):
    """The host itself."""

    platform: str
    python: str
    executable: str
    cores: int
    memory_bytes: int
    container: str | None
    shared_memory: SharedMemory
    open_files: int | None
    temporary_directory: TemporaryDirectory


class Accelerator(TypedDict):
    """A family of accelerators that is here, and which of its devices a run may use."""

    name: str
    title: str
    resource: str
    count: int
    ids: list[str]
    type: str | None
    driver: str | None
    memory_bytes: int | None
    names: list[str]
    trouble: str
    variable: str | None
    variables: dict[str, str | None]
    on_offer: list[str]
    error: str
    offered_instead: str | None
    held: dict[str, int | None]
    torch_device: str
    backend: str
    jax_platform: str | None


class VainVariable(TypedDict):
    """A variable that names devices of a family that is not here."""

    variable: str
    value: str
    title: str


class Framework(TypedDict, total=False):
    """A framework: whether it is there and works; the rest is there if it does."""

    installed: bool
    error: str
    version: str | None
    warnings: list[str]


class Torch(Framework, total=False):
    """PyTorch, with the kinds of devices that it was built for, and the numbers that it sees."""

    built_for: list[str]
    devices: dict[str, int]
    backends: list[str]


class Jax(Framework, total=False):
    """JAX, with its default platform and its number of devices there."""

    platform: str
    devices: int


class Training(TypedDict):
    """The engine, collective backends and network interfaces that a run would use."""

    engine: str | None
    settings_error: str
    backends: dict[str, str]
    interfaces: list[str]
    interface_variables: dict[str, str | None]
    interface: str | None
    cluster_address: str | None
    cluster_interface: str | None


class Findings(TypedDict):
    """All that a diagnosis needs."""

    dray: str
    machine: Machine
    accelerators: list[Accelerator]
    accelerators_error: str
    variables_in_vain: list[VainVariable]
    torch: Torch
    jax: Jax
    training: Training
    packages: dict[str, str]


class Advice(TypedDict):
    """A problem, and the remedy."""

    what: str
    do: str


class Report(Findings):
    """The findings and their diagnosis."""

    problems: list[Advice]
