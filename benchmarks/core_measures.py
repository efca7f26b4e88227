"""The measures of tasks, actors and objects: dray's engines against Ray Core."""

import contextlib
from collections.abc import Callable

from benchmarks.cases import DRAY, DRAY_ON_RAY, RAY_CORE, Case, Comparison, Options, Sample
from benchmarks.harness import Program, Record, run
from dray import host

COPY = "one memory copy"
BARE = "two bare processes"

TASK_ROUND_TRIPS = "tasks, one at a time"
TASKS = "tasks, 5,000 at once"
CALL_ROUND_TRIPS = "actor calls, one at a time"
CALLS = "actor calls, 5,000 at once"
_RATES = {
    TASK_ROUND_TRIPS: "task_round_trips",
    TASKS: "tasks",
    CALL_ROUND_TRIPS: "call_round_trips",
    CALLS: "calls",
}

INIT = "init()"
FIRST_TASK = "init() and the first task"
ACTOR_START = "actor start to its first answer"
FRESH_TASK = "task in a fresh process"
FRESH_IMPORT = "the eighth task in a fresh process that imports PyTorch"
FIRST_PUT = "first put of 100 MB"
PUT = "put of 100 MB"
GET = "get of 100 MB"
_TIMES = {
    INIT: "init",
    FIRST_TASK: "first_task",
    ACTOR_START: "actor_start",
    FRESH_TASK: "fresh_task",
    FRESH_IMPORT: "fresh_import",
    FIRST_PUT: "first_put",
    PUT: "put",
    GET: "get",
}

_CPUS = 2


_RATE_COMPARISONS = (
    *(Comparison(quantity, DRAY, RAY_CORE, 15, at_least=True) for quantity in _RATES),
    *(Comparison(q, who, BARE) for who in (DRAY, RAY_CORE) for q in (CALL_ROUND_TRIPS, CALLS)),
)


def _measured(options: Options, name: str, part: str) -> Record:
    """Run the program; Ray, and dray on Ray, start their own Ray on this machine."""
    engine = "ray" if name == DRAY_ON_RAY else "process"
    program = "bare" if name == BARE else "core"
    return run(options.command(name, program, _CPUS, engine, part)).last("measured")


def core_rates(options: Options) -> list[Case]:
    """Tasks and calls of actors in a second, alone and beside programs that use all cores."""

    def sample(name: str) -> Sample:
        told = _measured(options, name, "rates")
        return Sample({quantity: told[key] for quantity, key in _RATES.items() if key in told})

    def beside_busy(name: str) -> Sample:
        with contextlib.ExitStack() as processes:
            for _ in range(host.cpu_count()):
                processes.enter_context(Program([options.python, "-c", "while True: pass"]))
            return sample(name)

    on_ray = (Comparison(q, DRAY_ON_RAY, RAY_CORE, 0.9, at_least=True) for q in _RATES)
    alone = options.in_turn(sample, DRAY, BARE, DRAY_ON_RAY, RAY_CORE)
    busy = options.in_turn(beside_busy, DRAY, BARE, RAY_CORE)
    return [
        Case(f"{_CPUS} CPUs", "a second", alone, (*_RATE_COMPARISONS, *on_ray)),
        Case(f"{_CPUS} CPUs, all cores busy", "a second", busy, _RATE_COMPARISONS),
    ]


def core_times(options: Options) -> list[Case]:
    """Start of engine, actors and processes; storing and reading an array."""
    copies: dict[str, float] = {}

    def sample(name: str) -> Sample:
        if name == COPY and copies:  # measured between the puts of the same process
            return Sample({PUT: copies.pop(DRAY)})
        told = _measured(options, name, "times")
        if name == COPY:  # its turn is before dray's in every second round
            return Sample({PUT: told["copy"]})
        if name == DRAY:
            copies[DRAY] = told["copy"]
        values = {quantity: told[key] for quantity, key in _TIMES.items()}
        return Sample(values, {COPY: told["copy"]})

    comparisons = (
        Comparison(INIT, DRAY, target=50e-3),
        Comparison(FIRST_TASK, DRAY),
        Comparison(FIRST_TASK, DRAY, RAY_CORE),
        Comparison(ACTOR_START, DRAY, RAY_CORE, 1 / 12),
        Comparison(FRESH_TASK, DRAY, target=30e-3),
        Comparison(FRESH_TASK, DRAY, RAY_CORE),
        Comparison(FRESH_IMPORT, DRAY, RAY_CORE),
        Comparison(PUT, DRAY, COPY, 1.3),
        Comparison(PUT, DRAY, RAY_CORE),
        Comparison(FIRST_PUT, DRAY, RAY_CORE),
        Comparison(GET, DRAY, target=0.5e-3),
        Comparison(GET, DRAY, RAY_CORE),
        *(Comparison(q, DRAY_ON_RAY, RAY_CORE) for q in (ACTOR_START, FRESH_TASK, PUT, GET)),
    )
    contestants = options.in_turn(sample, DRAY, COPY, DRAY_ON_RAY, RAY_CORE)
    return [Case(f"{_CPUS} CPUs", "s", contestants, comparisons)]


MEASURES: dict[str, Callable[[Options], list[Case]]] = {
    "core_rates": core_rates,
    "core_times": core_times,
}
