"""The measures on a Ray cluster that runs already: dray's Ray engine against Ray Train."""

from collections.abc import Callable

from benchmarks.cases import DRAY_ON_RAY, RAY, Case, Comparison, Options, Sample

FIRST_FIT = "fit() to first all-reduce"
SECOND_FIT = "second fit() to first all-reduce"
PER_CALL = "report(), median"
RESTART = "kill to all-reduce"
TO_FUNCTION = "fit() to the train function of all ranks"
CPU_TIME = "driver's CPU time for a report"
WALL_TIME = "time for a report"

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


def scaling(options: Options) -> list[Case]:
    """On a Ray cluster of four nodes: what many workers that report cost the driver."""
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
    "scaling": scaling,
}
