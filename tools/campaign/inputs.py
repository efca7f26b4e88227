"""Calls of the public API with wrong input, which must work or raise an error of dray."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import dray
import dray.train
from dray.errors import DrayError

Verdict = tuple[dict[str, object], list[str]]

# A call that takes longer hangs: the stacks are printed, and the campaign ends.
_HANG_S = 60.0
# A call with wrong input takes at most this long, unless the machine stalls.
_SLOW_S = 5.0


class Cyclic(dict[str, Any]):
    """A mapping that contains itself."""

    def __init__(self) -> None:
        super().__init__()
        self["self"] = self


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e-5, 1e300, 2**31, 2**63, -(2**63), 2**200),
    *(float("nan"), float("inf"), float("-inf"), 1j),
    *("", "x", "CPU", "GPU", "2", "a/b", "../x", "\0", "\n", "é" * 300, "x" * 5000, b"bytes"),
    *((), [], {}, set(), [1], ["CPU"], {"CPU": 1}, {"CPU": -1}, {"GPU": "1"}, {1: 2}, {"": 1}),
    *(np.int64(2), np.float32(0.5), np.array([1, 2]), np.nan),
    *(object, object(), len, print, lambda: None, type, Exception, ValueError("x")),
    *(Cyclic(), {"CPU": float("nan")}, {"memory": 2**80}, ["a", 1], [None], ({},)),
)


def _sites(place: str) -> dict[str, Callable[[Any, Any], object]]:
    """Return the functions to call with two values each, by name."""

    @dray.remote
    def task(*args: Any, **kwargs: Any) -> int:
        return 1

    @dray.remote
    class Actor:
        def method(self, *args: Any) -> int:
            return 1

    actor = Actor.remote()
    ref = dray.put(1)
    train = dray.train

    def keywords(call: Callable[..., object], *names: str) -> Iterator[tuple[str, Any]]:
        for name in names:
            yield name, lambda a, b, name=name: call(**{name: a})

    options = (
        *("num_cpus", "num_gpus", "resources", "memory", "max_retries", "retry_exceptions"),
        *("num_returns", "name", "runtime_env", "scheduling_strategy", "label_selector"),
        *("accelerator_type", "max_calls", "nonsense"),
    )
    actor_options = (
        *("max_restarts", "max_task_retries", "max_concurrency", "lifetime", "namespace"),
        *("concurrency_groups", "max_pending_calls", "get_if_exists", "name", "num_cpus"),
    )
    scaling = (
        *("num_workers", "use_gpu", "use_tpu", "topology", "accelerator_type"),
        *("resources_per_worker", "placement_strategy", "label_selector", "trainer_resources"),
    )
    run = (
        *("name", "storage_path", "failure_config", "checkpoint_config", "callbacks"),
        *("worker_runtime_env", "logging_config", "storage_filesystem"),
    )
    sites: dict[str, Callable[[Any, Any], object]] = {
        "get": lambda a, b: dray.get(a, timeout=0),
        "get, timeout": lambda a, b: dray.get(ref, timeout=a if a is not None else 1),
        "wait": lambda a, b: dray.wait(a, timeout=0),
        "wait, number": lambda a, b: dray.wait([ref], num_returns=a, timeout=0),
        "cancel": lambda a, b: dray.cancel(a),
        "kill": lambda a, b: dray.kill(a),
        "put": lambda a, b: dray.get(dray.put(a)),
        "task": lambda a, b: dray.get(task.remote(a, b), timeout=30),
        "task, keyword": lambda a, b: dray.get(task.remote(x=a), timeout=30),
        "method": lambda a, b: dray.get(actor.method.remote(a), timeout=30),
        "remote": lambda a, b: dray.remote(a),
        "get_actor": lambda a, b: dray.get_actor(a),
        "init": lambda a, b: dray.init(a),
        "placement_group": lambda a, b: dray.util.placement_group(a, strategy=b),
        "placement_group, bundle": lambda a, b: dray.util.placement_group([a]),
        "Checkpoint": lambda a, b: train.Checkpoint(a),
        "Checkpoint, update": lambda a, b: train.Checkpoint(place).set_metadata(a),
        "Result.from_path": lambda a, b: train.Result.from_path(a),
        "trainer": lambda a, b: train.DataParallelTrainer(a, train_loop_config=b),
        "trainer, config": lambda a, b: train.DataParallelTrainer(print, scaling_config=a),
        "report": lambda a, b: train.report(a),
        **{f"options({n})": c for n, c in keywords(task.options, *options)},
        **{f"Actor.options({n})": c for n, c in keywords(Actor.options, *actor_options)},
        **{f"ScalingConfig({n})": c for n, c in keywords(train.ScalingConfig, *scaling)},
        **{f"RunConfig({n})": c for n, c in keywords(train.RunConfig, *run)},
        "FailureConfig": lambda a, b: train.FailureConfig(a),
        "CheckpointConfig": lambda a, b: train.CheckpointConfig(
            num_to_keep=a, checkpoint_score_attribute=b
        ),
        "LoggingConfig": lambda a, b: train.LoggingConfig(a),
    }
    return sites


def wrong_inputs(seed: int, scale: float) -> Verdict:
    """Call public functions 5,000 times with values that do not belong there."""
    import dray.util

    chance = random.Random(seed)
    faults: dict[str, str] = {}
    refused = taken = 0
    os.environ["DRAY_PROGRESS"] = "0"
    with tempfile.TemporaryDirectory(prefix="campaign-") as place:
        home = os.getcwd()
        os.chdir(place)
        os.environ["HOME"] = place
        dray.shutdown()  # the session of the part before
        dray.init(num_cpus=10_000)  # placement groups that were created keep their CPUs
        sites = _sites(place)
        names = sorted(sites)
        for number in range(round(5000 * scale)):
            name = names[number % len(names)]
            a, b = chance.choice(VALUES), chance.choice(VALUES)
            began = time.monotonic()
            faulthandler.dump_traceback_later(_HANG_S, exit=True)
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    sites[name](a, b)
                taken += 1
            except DrayError:
                refused += 1
            except Exception as error:  # noqa: BLE001 (to find them is what this is for)
                text = f"{name} of {_shown(a)}, {_shown(b)}: bare {type(error).__name__}: {error}"
                faults.setdefault(f"{name} {type(error).__name__}", text)
            finally:
                faulthandler.cancel_dump_traceback_later()
            if time.monotonic() - began > _SLOW_S:
                text = f"{name} of {_shown(a)}, {_shown(b)}: {time.monotonic() - began:.1f} s"
                faults.setdefault(f"{name} slow", text)
        if dray.get(dray.put(1), timeout=30) != 1:
            faults["after"] = "the session does not work any more"
        dray.shutdown()
        os.chdir(home)
    figures: dict[str, object] = {"calls": round(5000 * scale), "refused": refused, "taken": taken}
    return figures, list(faults.values())


def _shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except Exception as error:  # noqa: BLE001 (some have no repr, on purpose)
        return f"<{type(value).__name__}: {type(error).__name__}>"
