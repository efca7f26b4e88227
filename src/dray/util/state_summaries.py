"""Summaries of the rows of `dray.util.state`, in Ray's frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dray.util.state_rows import ActorState, ObjectState, State, TaskState

# Names to figures, and to further such ones.
Summary = dict[str, Any]

S = TypeVar("S", bound=State)


def of_actors(found: Sequence[ActorState]) -> Summary:
    """Return for each class how many actors are in which state."""
    summary = {
        name: {"class_name": name, "state_counts": _counts(same, "state")}
        for name, same in _by("class_name", found).items()
    }
    return _framed(summary, "class", total_actors=len(found))


def of_tasks(found: Sequence[TaskState]) -> Summary:
    """Return for each name how many tasks are in which state."""
    summary = {
        name: {
            "func_or_class_name": name,
            "type": same[0].type,
            "state_counts": _counts(same, "state"),
        }
        for name, same in _by("name", found).items()
    }
    kinds = Counter(state.type for state in found)
    return _framed(
        summary,
        "func_name",
        total_tasks=kinds["NORMAL_TASK"],
        total_actor_tasks=kinds["ACTOR_TASK"],
        total_actor_scheduled=kinds["ACTOR_CREATION_TASK"],
    )


def of_objects(found: Sequence[ObjectState], beside: Mapping[str, int]) -> Summary:
    """Return how many references to objects there are, and how large these are.

    Args:
        beside: Further figures of all objects.
    """
    totals = {
        "total_objects": len(found),
        "total_size_mb": sum(max(0, state.object_size) for state in found) / 2**20,
    }
    of_all = {
        **totals,
        "total_num_workers": len(_by("pid", found)),
        "total_num_nodes": len(_by("ip", found)),
        "task_state_counts": _counts(found, "task_status"),
        "ref_type_counts": _counts(found, "reference_type"),
    }
    summary = {"disabled": of_all} if found else {}  # Ray's name where nobody notes call sites
    return _framed(summary, "callsite", **totals, callsite_enabled=False, **beside)


def _by(name: str, found: Iterable[S]) -> dict[str, list[S]]:
    """Return states by what they have in a field."""
    groups: dict[str, list[S]] = {}
    for state in found:
        groups.setdefault(state[name], []).append(state)
    return groups


def _counts(found: Iterable[State], name: str) -> dict[str, int]:
    return dict(Counter(state[name] for state in found))


def _framed(summary: Summary, by: str, **totals: object) -> Summary:
    """Return a summary as Ray gives it: of the cluster, not of one node."""
    return {"cluster": {"summary": summary, **totals, "summary_by": by}}
