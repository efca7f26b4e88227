"""Diagnosis of a machine from the findings of `dray doctor`, with advice."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from dray.accelerators.vendors.nvidia import is_slice
from dray.cli.findings import Accelerator, Findings, Framework, TemporaryDirectory
from dray.host import bytes_in_words
from dray.settings import locks_directory

_ENOUGH_FILES = 1024
_TOO_LITTLE_SHARED_MEMORY = 64 << 20  # the default of Docker's containers

# The kinds of builds of PyTorch, which also calls AMD's GPUs "cuda".
BUILDS = {"cuda": "CUDA", "hip": "ROCm", "xpu": "Intel GPUs", "mps": "Apple GPUs"}

# A problem, and its remedy.
Problem = tuple[str, str]


def problems_of(found: Findings) -> list[Problem]:
    """Return the problems of a machine."""
    return [problem for check in _CHECKS for problem in check(found)]


def counted(count: int, title: str) -> str:
    """Return a number of things as text, such as "2 GPUs"."""
    return f"{count} {title}" if count == 1 else f"{count} {title}s"


def _machine_problems(found: Findings) -> Iterator[Problem]:
    machine = found["machine"]
    shared = machine["shared_memory"]
    bigger = "In a container, give it more shared memory: docker run --shm-size=1g, or --ipc=host."
    needs = "data loaders and collectives pass data through it"
    if sys.platform == "linux" and not shared["is_there"]:
        yield f"There is no /dev/shm, the shared memory; {needs}.", bigger
    elif shared["bytes"] is not None and shared["bytes"] <= _TOO_LITTLE_SHARED_MEMORY:
        room = bytes_in_words(shared["bytes"])
        yield f"/dev/shm, the shared memory, has only {room}; {needs}.", bigger
    files = machine["open_files"]
    if files is not None and files < _ENOUGH_FILES:
        yield (
            f"A process may have only {files} open files; many workers or objects need more.",
            f"Run `ulimit -n {4 * _ENOUGH_FILES}` before the program, or raise the system's limit.",
        )
    yield from _temporary_problems(machine["temporary_directory"])


def _temporary_problems(directory: TemporaryDirectory) -> Iterator[Problem]:
    wanted, used = directory["wanted"], directory["used"]
    if used == wanted:
        return
    said = f"{directory['variable']}={wanted}" if directory["variable"] else wanted
    instead = f"{used} is used instead" if used else "and no other one is writable either"
    yield (
        f"The temporary directory cannot be written to: {said}; {instead}.",
        "Make it a directory that you may write to and that has room, or set TMPDIR to one.",
    )


def _accelerator_problems(found: Findings) -> Iterator[Problem]:
    if found["accelerators_error"]:
        yield (
            "An installed package adds a family of accelerators, and this fails: "
            f"{found['accelerators_error']}",
            "Repair or remove that package; dray.init() fails like this as well.",
        )
    by_name = {entry["name"]: entry for entry in found["accelerators"]}
    for entry in by_name.values():
        title, ids = entry["title"], ", ".join(entry["ids"])
        if entry["trouble"]:
            yield f"{title}s: {entry['trouble']}.", _advice(entry)
        if entry["error"]:
            yield (f"{title}s: {entry['error']}.", f"The devices here are {ids}.")
        if entry["offered_instead"] and entry["count"]:
            first = by_name[entry["offered_instead"]]["title"]
            yield (
                f"{first}s and {title}s are both in this machine, and both are the resource "
                f"{entry['resource']}: dray offers only the {first}s.",
                f"To use the {title}s, keep the {first}s out of this machine or container.",
            )
    for variable in found["variables_in_vain"]:
        yield (
            f"{variable['variable']}={variable['value']!r} names devices, but no "
            f"{variable['title']} is found here.",
            "Unset it; or if there should be one, check that its driver is loaded and that the "
            "container has access to the devices.",
        )
    yield from _device_lock_problems(found)


def _advice(entry: Accelerator) -> str:
    if entry["count"]:
        return (
            "Install or repair the software that the message names; until then dray knows less "
            "about these devices."
        )
    return (
        "Check that the vendor's own tool shows the devices, and that the container has access "
        "to them; otherwise repair the driver."
    )


def _device_lock_problems(found: Findings) -> Iterator[Problem]:
    directory = locks_directory()
    if directory is None or not found["accelerators"]:
        return
    written = directory if os.path.exists(directory) else os.path.dirname(directory)
    if not os.path.isdir(written) or not os.access(written, os.W_OK | os.X_OK):
        yield (
            f"{directory}, where programs lock the devices that they use, is not writable.",
            (
                "Let all users write there, or set DRAY_CLAIMS to another directory, or to 0 "
                "for none."
            ),
        )


def _torch_problems(found: Findings) -> Iterator[Problem]:
    torch = found["torch"]
    if not torch["installed"]:
        return
    if torch["error"]:
        yield f"PyTorch is installed, but fails: {torch['error']}", "Install it anew."
        return
    for entry in found["accelerators"]:
        device, count, title = entry["torch_device"], len(entry["on_offer"]), f"{entry['title']}s"
        build = "hip" if entry["name"] == "amd" else device
        if not count or build not in BUILDS:
            continue
        if build not in torch["built_for"]:
            yield (
                f"PyTorch {torch['version']} is built without {BUILDS[build]}, so it cannot use "
                f"the {title} here.",
                f"Install a build for {BUILDS[build]}: https://pytorch.org/get-started/locally",
            )
            continue
        yield from _unseen("PyTorch", torch, torch["devices"][device], entry)
        if entry["backend"] not in torch["backends"]:
            instead = ", or set TorchConfig(backend='gloo')" if device == "cuda" else ""
            yield (
                f"PyTorch {torch['version']} is built without {entry['backend']}, which workers "
                f"on {title} use to communicate.",
                f"Install a build that has it{instead}.",
            )


def _unseen(what: str, framework: Framework, seen: int, entry: Accelerator) -> Iterator[Problem]:
    ids = entry["on_offer"]
    expected = 1 if any(map(is_slice, ids)) else len(ids)
    if seen < expected:
        why = "".join(f" It says: {text}" for text in framework.get("warnings", ())[:1])
        driver = f" {entry['driver']}" if entry["driver"] else ""
        yield (
            f"{what} {framework['version']} sees {seen} of the "
            f"{counted(expected, entry['title'])} on offer.{why}",
            f"Check that the driver{driver} is new enough for this build, that the vendor's own "
            "tool shows the devices, and that the container has access to all of them.",
        )


def _jax_problems(found: Findings) -> Iterator[Problem]:
    jax = found["jax"]
    if not jax["installed"]:
        return
    known = [e for e in found["accelerators"] if e["jax_platform"] and e["on_offer"]]
    if jax["error"]:
        if not any(entry["held"] for entry in known):  # only one process can use a TPU at a time
            yield f"JAX is installed, but fails: {jax['error']}", "Install it anew."
        return
    for entry in known:
        if jax["platform"] == "cpu":
            yield (
                f"JAX {jax['version']} sees only the CPU, so it cannot use the "
                f"{entry['title']}s here.",
                f"Install its build for {entry['jax_platform']}, and check JAX_PLATFORMS: "
                "https://docs.jax.dev/en/latest/installation.html",
            )
        else:
            yield from _unseen("JAX", jax, jax["devices"], entry)


def _training_problems(found: Findings) -> Iterator[Problem]:
    training = found["training"]
    if training["settings_error"]:
        yield f"{training['settings_error']}.", "Correct or unset the variable."
    given = training["interface_variables"]["GLOO_SOCKET_IFNAME"]
    missing = [name for name in (given or "").split(",") if name not in training["interfaces"]]
    if given and training["interfaces"] and missing:
        yield (
            f"GLOO_SOCKET_IFNAME={given!r} names a network interface that is not here: "
            f"{', '.join(missing)}.",
            f"Unset it, or name one of {', '.join(training['interfaces'])}.",
        )


_CHECKS: tuple[Callable[[Findings], Iterator[Problem]], ...] = (
    _machine_problems,
    _accelerator_problems,
    _torch_problems,
    _jax_problems,
    _training_problems,
)
