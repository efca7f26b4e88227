"""Every public name of Ray: it is here, or an error of dray's says what to use instead."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping

import pytest

import dray
from dray.compat.absent_names import TABLE
from dray.compat.arguments import check_arguments, known_options
from dray.compat.init_arguments import OF_A_CLUSTER
from dray.core import options
from dray.errors import AbsentError, MissingDependencyError
from tests.support import rays_names


def pairs(names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((owner, name) for owner, text in names.items() for name in text.split())


def trouble_with(code: str) -> str | None:
    """What is wrong with how code is answered; None if it runs, or is told what to use instead."""
    try:
        exec(code, {"dray": dray})
    except AbsentError as error:
        return trouble_with_advice(code, error)
    except MissingDependencyError:  # it is there, where its extra is
        return None
    except Exception as error:  # noqa: BLE001 (which is what must not be)
        return f"{code}: {type(error).__name__}: {error}"
    return None


def trouble_with_advice(what: str, error: AbsentError) -> str | None:
    text = str(error)
    good = len(text.partition(": ")[2].split()) > 1 and not text.endswith(".") and "\n" not in text
    return None if good else f"{what}: {text}"


@pytest.mark.filterwarnings("ignore:NVIDIA_TESLA_A100:DeprecationWarning")
def test_every_name_can_be_imported_or_says_what_to_use() -> None:
    found = [trouble_with(f"from {m} import {n}") for m, n in pairs(rays_names.EXPORTS)]
    assert [trouble for trouble in found if trouble] == []


def test_every_module_can_be_imported_or_says_what_to_use() -> None:
    ways = ("import {0}.{1}", "from {0} import {1}", "import {0}; {0}.{1}")
    found = [
        trouble_with(way.format(package, name))
        for package, name in pairs(rays_names.SUBMODULES)
        for way in ways
    ]
    assert [trouble for trouble in found if trouble] == []


def test_every_member_is_there_or_says_what_to_use() -> None:
    # What `__init__` sets is not on the class.
    found = [
        trouble_with(f"from {module} import {kind}; {kind}.{name}")
        for owner, name in pairs(rays_names.MEMBERS)
        for module, _, kind in [owner.rpartition(".")]
        if name not in ("info", "actor_init_failed")
    ]
    assert [trouble for trouble in found if trouble] == []


def test_every_argument_is_taken_or_says_what_to_use() -> None:
    troubles = []
    for owner, name in pairs(rays_names.ARGUMENTS):
        module, _, function = owner.rpartition(".")
        target = getattr(importlib.import_module(module), function)
        known = inspect.signature(target).parameters
        if name in known or (function == "init" and name in (*OF_A_CLUSTER, "_memory")):
            continue
        callee = owner if f"{owner}()" in TABLE else function
        try:
            check_arguments(callee, {name: object()}, tuple(known))
        except AbsentError as error:
            troubles.append(trouble_with_advice(f"{owner}({name}=)", error))
    assert [trouble for trouble in troubles if trouble] == []


def test_every_option_is_taken_or_says_what_to_use() -> None:
    troubles = []
    for what, name in pairs(rays_names.OPTIONS):
        known = {"tasks": options.TASK, "actors": options.ACTOR}[what]
        try:
            known_options({name: object()}, known, what)
        except AbsentError as error:
            troubles.append(trouble_with_advice(f"{what}: {name}", error))
    assert [trouble for trouble in troubles if trouble] == []


def test_the_table_has_nothing_that_is_there_and_one_sentence_for_what_is_not() -> None:
    for owner, entries in TABLE.items():
        there: set[str] = set()
        if owner.startswith("dray") and not owner.endswith(")"):
            try:
                module = importlib.import_module(owner)
            except MissingDependencyError:  # an extra that is not installed here
                continue
            there = {*vars(module), *getattr(module, "__all__", ())}
        for name, entry in entries.items():
            assert name not in there, (owner, name)
            assert entry.advice.strip(), (owner, name)
            assert ". " not in entry.advice.rstrip("."), (owner, name)
            assert not entry.advice.endswith("."), (owner, name)
