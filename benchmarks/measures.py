"""The measures: the programs that are run, the figures taken from them, and their targets."""

import statistics
from collections.abc import Callable, Sequence

from benchmarks import (
    checkpoint_measures,
    cluster_measures,
    core_measures,
    data_measures,
    framework_measures,
    gpu_measures,
    step_measures,
)
from benchmarks.cases import (
    DRAY,
    PLAIN_JAX,
    RAY,
    TORCH,
    TORCHRUN,
    Case,
    Comparison,
    Options,
    Sample,
)
from benchmarks.harness import Program, run
from benchmarks.memory import read_descendants
from dray import host

EAGER = "dray, torch at top"
LAZY = "dray, torch inside"
# Seconds of work before each call.
SPACED = {"dray, 1 ms of work between calls": 1e-3, "dray, 20 ms of work between calls": 20e-3}
TO_REDUCE = "to first all-reduce"
TO_RETURN = "fit() to its return"
RESTART = "kill to all-reduce"
PER_CALL = "report(), median"
PLAIN_LINE = "a line of plain Python's into a file and a socket, median"
EMPTY_CALL = "a call of an empty function, median"
SPEED = "images a second"
TO_REFUSAL = "fit() of one more, to its refusal"
TO_GATHER = "to first collective"
FIT_TO_GATHER = "fit() to first collective"
REFIT_TO_GATHER = "second fit() to first collective"
TO_STEP = "to first jitted step"
REFIT_TO_STEP = "second fit() to first jitted step"

_IMPORT_TORCH = "import torch; from benchmarks.records import record; record('imported')"
_HEAVY = {"torch", "ray", "pandas", "pyarrow"}


def _import_torch(options: Options) -> Sample:
    finished = run([options.python, "-c", _IMPORT_TORCH])
    return Sample({TO_REDUCE: finished.until("imported")})


def start(options: Options) -> list[Case]:
    """Start of the script to the first all-reduce."""
    return [_start(options, workers) for workers in ([2] if options.quick else [1, 2, 4, 8])]


def _start(options: Options, workers: int) -> Case:
    def sample(name: str) -> Sample:
        if name == TORCH:
            return _import_torch(options)
        environment = {"BENCHMARK_TORCH_AT_TOP": "1"} if name == EAGER else {}
        finished = run(options.command(name, "start", workers), environment)
        return Sample({TO_REDUCE: finished.until("reduced")})

    names = [LAZY, EAGER, TORCHRUN, TORCH, *([RAY] if workers == 2 or options.ray_all else [])]
    targets: dict[tuple[str, str], float] = {}
    if workers == 2:
        targets = {
            (LAZY, TORCH): 1.4,
            (LAZY, TORCHRUN): 0.6,
            (LAZY, RAY): 1 / 12,
            (EAGER, TORCH): 2.1,
            (EAGER, TORCHRUN): 0.75,
        }
    return Case(
        _workers(workers),
        "s",
        options.in_turn(sample, *names),
        tuple(
            Comparison(TO_REDUCE, subject, peer, targets.get((subject, peer)))
            for subject in (LAZY, EAGER)
            for peer in names[2:]
        ),
    )


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def second_fit(options: Options) -> list[Case]:
    """A second fit() in the same process, to its first all-reduce."""

    def sample(name: str) -> Sample:
        finished = run(options.command(name, "refit", 2, "reduce", 2))
        return Sample({TO_REDUCE: finished.between("called", "reduced")})

    comparison = Comparison(TO_REDUCE, DRAY, RAY, 1 / 100)
    return [Case("2 workers", "s", options.in_turn(sample, DRAY, RAY), (comparison,))]


def report(options: Options) -> list[Case]:
    """One report() without a checkpoint, on the training thread."""

    def sample(name: str) -> Sample:
        work_s = SPACED.get(name, 0.0)
        calls = 5 if name == RAY else 200 if options.quick or work_s > 1e-3 else 2000
        told = run(options.command(name, "report", 2, calls, work_s)).last("reported")
        values = {PER_CALL: told["median"]}
        if name != RAY:
            values["report(), 99th percentile"] = told["p99"]
        if work_s:
            values[PLAIN_LINE], values[EMPTY_CALL] = told["plain_line"], told["empty"]
        return Sample(values, {"calls": calls})

    comparisons = (
        Comparison(PER_CALL, DRAY, target=50e-6),
        *(Comparison(PER_CALL, name, target=30e-6) for name in SPACED),
        Comparison(PER_CALL, DRAY, RAY),
    )
    return [Case("2 workers", "s", options.in_turn(sample, DRAY, *SPACED, RAY), comparisons)]


def empty_fit(options: Options) -> list[Case]:
    """The third fit() of an empty function in one process."""

    def sample(name: str) -> Sample:
        finished = run(options.command(name, "refit", 2, "empty", 3))
        return Sample({TO_RETURN: finished.between("called", "returned")})

    comparison = Comparison(TO_RETURN, DRAY, RAY)
    return [Case("2 workers", "s", options.in_turn(sample, DRAY, RAY), (comparison,))]


def memory(options: Options) -> list[Case]:
    """Memory of the runtime, and of each worker while it trains."""
    return [_memory(options, workers) for workers in ([2] if options.quick else [2, 8])]


def _memory(options: Options, workers: int) -> Case:
    def sample(name: str) -> Sample:
        with Program(options.command(name, "memory", workers)) as program:
            told = program.records()
            pids = {next(told)["pid"] for _ in range(workers)}
            processes = read_descendants()
        trainers = [process for pid, process in processes.items() if pid in pids]
        runtime = [process for pid, process in processes.items() if pid not in pids]
        values = {
            "runtime, private": sum(process.private for process in runtime),
            "runtime, proportional": sum(process.proportional for process in runtime),
            "worker, private": statistics.median(process.private for process in trainers),
            "worker, proportional": statistics.median(process.proportional for process in trainers),
        }
        return Sample(values, [process._asdict() for process in runtime])

    return Case(
        f"{workers} workers",
        "MB",
        options.in_turn(sample, DRAY, RAY),
        (
            Comparison("worker, private", DRAY, target=30),
            Comparison("worker, private", DRAY, RAY),
            Comparison("worker, proportional", DRAY, RAY),
            Comparison("runtime, private", DRAY, RAY),
            Comparison("runtime, proportional", DRAY, RAY),
        ),
    )


def recovery(options: Options) -> list[Case]:
    """kill -9 of a worker to the next all-reduce of all ranks."""

    def sample(name: str) -> Sample:
        finished = run(options.command(name, "recovery", 2))
        return Sample({RESTART: finished.between("killed", "recovered")})

    comparison = Comparison(RESTART, DRAY, RAY, 1 / 20)
    return [Case("2 workers", "s", options.in_turn(sample, DRAY, RAY), (comparison,))]


def warm16(options: Options) -> list[Case]:
    """A second fit() of 16 workers in one process, to its first all-reduce."""

    def sample(name: str) -> Sample:
        if name == TORCH:
            return _import_torch(options)
        finished = run(options.command(name, "refit", 16, "reduce", 2, 16))
        return Sample({TO_REDUCE: finished.between("called", "reduced")})

    comparison = Comparison(TO_REDUCE, DRAY, TORCH, 0.5)
    return [Case("16 workers", "s", options.in_turn(sample, DRAY, TORCH), (comparison,))]


def threads(options: Options) -> list[Case]:
    """Images a second of a ResNet-18, with default threads and with threads set by hand."""
    return [
        _threads(options, 1, by_hand=(host.cpu_count(),), target=1.5),
        _threads(options, 2, by_hand=(1, 2)),
    ]


def _threads(
    options: Options, workers: int, by_hand: Sequence[int], target: float | None = None
) -> Case:
    """Return a case of dray's default against all settings of torchrun, and against Ray Train."""
    steps = 5 if options.quick else 40
    torchruns: dict[str, dict[str, str]] = {TORCHRUN: {}}
    for number in by_hand:
        setting = {"OMP_NUM_THREADS": str(number)}
        torchruns[f"{TORCHRUN}, {number} thread{'s' if number > 1 else ''}"] = setting

    def sample(name: str) -> Sample:
        command = options.command(name, "throughput", workers, steps)
        told = run(command, torchruns.get(name)).last("trained")
        details = {name: told[name] for name in ("threads", "cpu_seconds_per_step")}
        return Sample({SPEED: told["images_per_second"]}, details)

    return Case(
        _workers(workers),
        "images/s",
        options.in_turn(sample, DRAY, *torchruns, RAY),
        (
            *(Comparison(SPEED, DRAY, peer, 0.97, at_least=True) for peer in torchruns),
            Comparison(SPEED, DRAY, RAY, target, at_least=True),
        ),
    )


def plan(options: Options) -> list[Case]:
    """plan() of many workers on as many simulated nodes, and fit() with one worker too many."""
    targets = {1000: 50e-3} if options.quick else {1000: 50e-3, 10_000: 1.0}
    return [_plan(options, workers, target) for workers, target in targets.items()]


def _plan(options: Options, workers: int, target: float) -> Case:
    events = {"plan(), PACK": "PACK", "plan(), SPREAD": "SPREAD", TO_REFUSAL: "refused"}

    def sample(name: str) -> Sample:
        finished = run(options.command(name, "plan", workers, 5))
        taken = {quantity: finished.last(event)["seconds"] for quantity, event in events.items()}
        medians = {quantity: statistics.median(each) for quantity, each in taken.items()}
        return Sample(medians, taken)

    comparisons = tuple(
        Comparison(quantity, DRAY, target=1.0 if quantity == TO_REFUSAL else target)
        for quantity in events
    )
    title = f"{workers:,} workers on {workers:,} nodes"
    return Case(title, "s", options.in_turn(sample, DRAY), comparisons)


def controller(options: Options) -> list[Case]:
    """The driver's own work for a run of many workers, by worker and step of the run."""
    return [_controller(options, workers) for workers in (100, 1000, 10_000)]


def _controller(options: Options, workers: int) -> Case:
    steps = (
        "start",
        "a report",
        "a collective",
        "a checkpoint of all",
        "a failure and the restart",
        "the end",
    )

    def sample(name: str) -> Sample:
        lived = run(options.command(name, "controller", workers)).last("lived")
        return Sample({step: lived["seconds"][step] / workers for step in steps}, lived)

    comparisons = tuple(Comparison(step, DRAY, target=1e-3) for step in steps)
    title = f"{workers:,} workers, for each"
    return Case(title, "s", options.in_turn(sample, DRAY), comparisons)


def hundred(options: Options) -> list[Case]:
    """100 worker processes that start, report 50 times each, and end."""
    reports = 50

    def sample(name: str) -> Sample:
        finished = run(options.command(name, "scaling", 100, reports))
        handled = finished.last("handled")
        return Sample(
            {
                "fit() to all in the function": finished.between("called", "entered"),
                "for each report, wall clock": handled["wall_s"] / handled["events"],
                "for each report, driver's processor": handled["cpu_s"] / handled["events"],
                "fit() to its return": finished.between("called", "returned"),
            }
        )

    comparison = Comparison("fit() to all in the function", DRAY)
    return [Case("100 workers", "s", options.in_turn(sample, DRAY), (comparison,))]


def jax_start(options: Options) -> list[Case]:
    """Start of the script, and fit(), to the first collective of a JAX program."""

    def sample(name: str) -> Sample:
        fits = () if name == PLAIN_JAX else (2,)
        finished = run(options.command(name, "jax", 2, *fits), {"JAX_PLATFORMS": "cpu"})
        started = finished.until("gathered", 0)
        stepped = finished.until("stepped", 0)
        if name == PLAIN_JAX:  # another run is another start
            to_step = {TO_STEP: stepped, REFIT_TO_STEP: stepped}
            return Sample({TO_GATHER: started, REFIT_TO_GATHER: started, **to_step})
        first, second = (finished.between("called", "gathered", turn) for turn in (0, 1))
        to_step = {TO_STEP: stepped, REFIT_TO_STEP: finished.between("called", "stepped")}
        values = {TO_GATHER: started, FIT_TO_GATHER: first, REFIT_TO_GATHER: second}
        return Sample(values | to_step)

    comparisons = (
        Comparison(TO_GATHER, DRAY, PLAIN_JAX),
        Comparison(FIT_TO_GATHER, DRAY),
        Comparison(REFIT_TO_GATHER, DRAY),
        Comparison(REFIT_TO_GATHER, DRAY, PLAIN_JAX),
        Comparison(TO_STEP, DRAY, PLAIN_JAX),
        Comparison(REFIT_TO_STEP, DRAY),
    )
    return [Case("2 workers", "s", options.in_turn(sample, DRAY, PLAIN_JAX), comparisons)]


def imports(options: Options) -> list[Case]:
    """Measure the time that an import adds to an empty Python program."""

    def sample(name: str) -> Sample:
        run([options.python, "-c", f"{name}, sys; sys.exit({_HEAVY} & set(sys.modules) or None)"])
        empty = run([options.python, "-c", "pass"]).seconds
        return Sample({"longer than nothing": run([options.python, "-c", name]).seconds - empty})

    names = ("import dray", "import dray.train.torch")
    comparisons = (
        Comparison("longer than nothing", names[0], target=20e-3),
        Comparison("longer than nothing", names[1]),
    )
    return [Case("one process", "s", options.in_turn(sample, *names), comparisons, rounds=5)]


MEASURES: dict[str, Callable[[Options], list[Case]]] = {
    "start": start,
    "second_fit": second_fit,
    "report": report,
    "empty_fit": empty_fit,
    "memory": memory,
    "recovery": recovery,
    "warm16": warm16,
    "threads": threads,
    "plan": plan,
    "controller": controller,
    "hundred": hundred,
    "jax_start": jax_start,
    "import": imports,
    **step_measures.MEASURES,
    **checkpoint_measures.MEASURES,
    **data_measures.MEASURES,
    **framework_measures.MEASURES,
    **gpu_measures.MEASURES,
    **core_measures.MEASURES,
    **cluster_measures.MEASURES,
}
