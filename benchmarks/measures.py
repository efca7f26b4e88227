"""The measures: what is run, what is taken from it, and which targets it must meet."""

import functools
import statistics
from collections.abc import Callable

from benchmarks import cluster_measures, core_measures
from benchmarks.cases import DRAY, RAY, TORCH, TORCHRUN, Case, Comparison, Options, Sample
from benchmarks.harness import Program, run
from benchmarks.memory import read_descendants

EAGER = "dray, torch at top"
LAZY = "dray, torch inside"
SPACED = "dray, 1 ms of work between calls"
TO_REDUCE = "to first all-reduce"
TO_RETURN = "fit() to its return"
RESTART = "kill to all-reduce"
PER_CALL = "report(), median"
SPEED = "images a second"

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
        "1 worker" if workers == 1 else f"{workers} workers",
        "s",
        options.in_turn(sample, *names),
        tuple(
            Comparison(TO_REDUCE, subject, peer, targets.get((subject, peer)))
            for subject in (LAZY, EAGER)
            for peer in names[2:]
        ),
    )


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
        calls = 5 if name == RAY else 200 if options.quick else 2000
        work_s = 1e-3 if name == SPACED else 0
        told = run(options.command(name, "report", 2, calls, work_s)).last("reported")
        values = {PER_CALL: told["median"]}
        if name != RAY:
            values["report(), 99th percentile"] = told["p99"]
        return Sample(values, {"calls": calls})

    comparisons = (
        Comparison(PER_CALL, DRAY, target=50e-6),
        Comparison(PER_CALL, SPACED),
        Comparison(PER_CALL, DRAY, RAY),
    )
    return [Case("2 workers", "s", options.in_turn(sample, DRAY, SPACED, RAY), comparisons)]


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
    """16 workers in a warm process: a second fit() to its first all-reduce."""

    def sample(name: str) -> Sample:
        if name == TORCH:
            return _import_torch(options)
        finished = run(options.command(name, "refit", 16, "reduce", 2, 16))
        return Sample({TO_REDUCE: finished.between("called", "reduced")})

    comparison = Comparison(TO_REDUCE, DRAY, TORCH, 0.5)
    return [Case("16 workers", "s", options.in_turn(sample, DRAY, TORCH), (comparison,))]


def throughput(options: Options) -> list[Case]:
    """Images a second of a ResNet-18."""
    steps = 5 if options.quick else 20

    def sample(name: str, environment: dict[str, str]) -> Sample:
        told = run(options.command(name, "throughput", 2, steps), environment).last("trained")
        details = {name: told[name] for name in ("threads", "cpu_seconds_per_step")}
        return Sample({SPEED: told["images_per_second"]}, details)

    def case(title: str, environment: dict[str, str], target: float | None) -> Case:
        sample_there = functools.partial(sample, environment=environment)
        comparisons = (
            Comparison(SPEED, DRAY, TORCHRUN, target, at_least=True),
            Comparison(SPEED, DRAY, RAY),
        )
        contestants = options.in_turn(sample_there, DRAY, TORCHRUN, RAY)
        return Case(title, "images/s", contestants, comparisons)

    return [
        case("2 workers, 1 thread each", {"OMP_NUM_THREADS": "1"}, 0.95),
        case("2 workers, each one's defaults", {}, None),
    ]


def imports(options: Options) -> list[Case]:
    """What an import adds to the time of an empty Python program."""

    def sample(name: str) -> Sample:
        run([options.python, "-c", f"{name}, sys; sys.exit({_HEAVY} & set(sys.modules) or None)"])
        empty = run([options.python, "-c", "pass"]).seconds
        return Sample({"longer than nothing": run([options.python, "-c", name]).seconds - empty})

    names = ("import dray", "import dray.train.torch")
    comparisons = (
        Comparison("longer than nothing", names[0], target=0.1),
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
    "throughput": throughput,
    "import": imports,
    **core_measures.MEASURES,
    **cluster_measures.MEASURES,
}
