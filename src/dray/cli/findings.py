"""The types of the findings of `dray doctor`, as `--json` prints them."""

from __future__ import annotations

from typing import TypedDict


class SharedMemory(TypedDict):
    """The file system /dev/shm; its size is None if it is unknown."""

    is_there: bool
    bytes: int | None


class TemporaryDirectory(TypedDict):
    """The directory that a variable or the default names, and the one that Python uses."""

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
    """A family of accelerators on this machine, and the devices that a run may use."""

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
    """A variable that names devices of a family that this machine does not have."""

    variable: str
    value: str
    title: str


class Framework(TypedDict, total=False):
    """A framework: whether it is installed and works; the other keys exist only if it works."""

    installed: bool
    error: str
    version: str | None
    warnings: list[str]


class Torch(Framework, total=False):
    """PyTorch, with the kinds of devices that it was built for, and the numbers it finds."""

    built_for: list[str]
    devices: dict[str, int]
    backends: list[str]


class Jax(Framework, total=False):
    """JAX, with its default platform, and the number of devices of that."""

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
    """The facts that a diagnosis needs."""

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
    """A problem, and its remedy."""

    what: str
    do: str


class Report(Findings):
    """The findings and their diagnosis."""

    problems: list[Advice]
