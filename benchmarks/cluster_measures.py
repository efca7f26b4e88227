"""The measures on a running Ray cluster: dray's Ray engine against Ray Train."""

from collections.abc import Callable

from benchmarks.cases import DRAY_ON_RAY, RAY, Case, Comparison, Options, Sample
from benchmarks.harness import Finished
from benchmarks.step_measures import STRATEGIES

FIRST_FIT = "fit() to first all-reduce"
SECOND_FIT = "second fit() to first all-reduce"
PER_CALL = "report(), median"
RESTART = "kill to all-reduce"
FIRST_STEP = "fit() to first optimizer step"
SECOND_STEP = "second fit() to first optimizer step"
RECOVERY_STEP = "kill to first optimizer step"
TO_FUNCTION = "fit() to the train function of all ranks"
CPU_TIME = "driver's CPU time for a report"
WALL_TIME = "time for a report"

# Without agents, every worker is an actor of Ray.
WITHOUT_AGENTS = f"{DRAY_ON_RAY}, without agents"
JAX = "jax"
STEPS = {**STRATEGIES, JAX: "JAX"}
_ONE_NODE = (4,)
_FOUR_NODES = (0, 4, 4, 4)  # a head, and nodes for the workers


def _pair(options: Options, sample: Callable[[str], Sample], *comparisons: Comparison) -> Case:
    contestants = options.in_turn(sample, DRAY_ON_RAY, RAY)
    return Case("2 workers", "s", contestants, comparisons, nodes=_ONE_NODE)


def cluster_start(options: Options) -> list[Case]:
    """On a Ray cluster: the first two fit() of a connected driver, to their first all-reduce."""

    def sample(name: str) -> Sample:
        finished = options.cluster.run(options.command(name, "refit", 2, "reduce", 2))
        first, second = (finished.between("called", "reduced", turn) for turn in (0, 1))
        return Sample({FIRST_FIT: first, SECOND_FIT: second})

    return [
        _pair(
            options,
            sample,
            Comparison(FIRST_FIT, DRAY_ON_RAY, RAY, 0.35),
            Comparison(SECOND_FIT, DRAY_ON_RAY, RAY),
        )
    ]


def cluster_report(options: Options) -> list[Case]:
    """On a Ray cluster: one report() without a checkpoint, on the training thread."""

    def sample(name: str) -> Sample:
        calls = 5 if name == RAY else 200 if options.quick else 2000
        told = options.cluster.run(options.command(name, "report", 2, calls, 0)).last("reported")
        return Sample({PER_CALL: told["median"]}, {"calls": calls, "p99": told["p99"]})

    return [
        _pair(
            options,
            sample,
            Comparison(PER_CALL, DRAY_ON_RAY, target=100e-6),
            Comparison(PER_CALL, DRAY_ON_RAY, RAY),
        )
    ]


def cluster_recovery(options: Options) -> list[Case]:
    """On a Ray cluster: kill -9 of a worker to the next all-reduce of all ranks."""

    def sample(name: str) -> Sample:
        finished = options.cluster.run(options.command(name, "recovery", 2))
        return Sample({RESTART: finished.between("killed", "recovered")})

    return [_pair(options, sample, Comparison(RESTART, DRAY_ON_RAY, RAY, 0.4))]


def cluster_step_refit(options: Options) -> list[Case]:
    """On a Ray cluster: a second fit() of a connected driver, to its first optimizer step."""

    def sample(name: str, strategy: str) -> Sample:
        told = ("jax", 2) if strategy == JAX else ("refit", strategy, 2)
        finished = _run(options, name, *told)
        first, second = (finished.between("called", "stepped", turn) for turn in (0, 1))
        return Sample({FIRST_STEP: first, SECOND_STEP: second})

    return [_steps(options, sample, strategy, SECOND_STEP, FIRST_STEP) for strategy in STEPS]


def cluster_step_recovery(options: Options) -> list[Case]:
    """On a Ray cluster: kill -9 of a worker to the next optimizer step of all ranks."""

    def sample(name: str, strategy: str) -> Sample:
        told = ("jax", 1, "killed") if strategy == JAX else ("recovery", strategy)
        finished = _run(options, name, *told)
        return Sample({RECOVERY_STEP: finished.between("killed", "stepped")})

    return [_steps(options, sample, strategy, RECOVERY_STEP) for strategy in STEPS]


def _run(options: Options, name: str, program: str, *rest: object) -> Finished:
    variables = {"DRAY_RAY_AGENTS": "0"} if name == WITHOUT_AGENTS else {}
    command = options.command(name, program, 2, *rest)
    return options.cluster.run(command, JAX_PLATFORMS="cpu", **variables)


def _steps(
    options: Options, sample: Callable[[str, str], Sample], strategy: str, *quantities: str
) -> Case:
    """Return a case of dray with agents, dray without them, and, for DDP, Ray Train."""
    target, *others = quantities
    peers = (WITHOUT_AGENTS, RAY) if strategy == "ddp" else (WITHOUT_AGENTS,)
    comparisons = (
        Comparison(target, DRAY_ON_RAY, target=0.4),
        *(
            Comparison(quantity, DRAY_ON_RAY, peer)
            for quantity in (target, *others)
            for peer in peers
        ),
    )
    turns = options.in_turn(lambda name: sample(name, strategy), DRAY_ON_RAY, *peers)
    return Case(f"2 workers, {STEPS[strategy]}", "s", turns, comparisons, nodes=_ONE_NODE)


def scaling(options: Options) -> list[Case]:
    """On a Ray cluster of four nodes: the driver's cost of many workers that report."""
    reports = 200
    counts = [4, 16] if options.quick else [4, 16, 64]
    names = {f"{DRAY_ON_RAY}, {workers} workers": workers for workers in counts}

    def sample(name: str) -> Sample:
        command = options.command(name, "scaling", names[name], reports)
        finished = options.cluster.run(command)
        told = finished.last("handled")
        values = {
            TO_FUNCTION: finished.between("called", "entered"),
            CPU_TIME: told["cpu_s"] / told["events"],
            WALL_TIME: told["wall_s"] / told["events"],
        }
        return Sample(values, {"events": told["events"]})

    fewest, *others = names
    comparisons = tuple(
        Comparison(quantity, subject, fewest)
        for quantity in (CPU_TIME, WALL_TIME)
        for subject in others
    )
    title = f"0.03 CPUs and {reports} reports a worker"
    return [Case(title, "s", options.in_turn(sample, *names), comparisons, nodes=_FOUR_NODES)]


MEASURES: dict[str, Callable[[Options], list[Case]]] = {
    "cluster_start": cluster_start,
    "cluster_report": cluster_report,
    "cluster_recovery": cluster_recovery,
    "cluster_step_refit": cluster_step_refit,
    "cluster_step_recovery": cluster_step_recovery,
    "scaling": scaling,
}
