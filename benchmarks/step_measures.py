"""The measures that end with the first optimizer step, for which a user waits."""

from collections.abc import Callable

from benchmarks.cases import DRAY, RAY, TORCHRUN, Case, Comparison, Options, Sample
from benchmarks.harness import run

STEP = "to first optimizer step"
STRATEGIES = {"ddp": "DDP", "fsdp": "FSDP2"}
ONE_PROCESS = "imports of one process"
LATER = "dray, a later fit()"

_IMPORTS = (
    "import torch, torch.distributed, torch.nn.parallel, torch.utils.data, torch._dynamo; "
    "from benchmarks.records import record; record('imported')"
)


def step_start(options: Options) -> list[Case]:
    """Start of the script to the first optimizer step."""
    return [_start(options, strategy) for strategy in STRATEGIES]


def _start(options: Options, strategy: str) -> Case:
    def sample(name: str) -> Sample:
        if name == ONE_PROCESS:
            return Sample({STEP: run([options.python, "-c", _IMPORTS]).until("imported")})
        finished = run(options.command(name, "start", 2, strategy))
        return Sample({STEP: finished.until("stepped")})

    peers = (ONE_PROCESS, TORCHRUN, RAY) if strategy == "ddp" else (ONE_PROCESS,)
    targets = {ONE_PROCESS: 1.1, TORCHRUN: 0.5}
    return Case(
        _title(strategy),
        "s",
        options.in_turn(sample, DRAY, *peers),
        tuple(Comparison(STEP, DRAY, peer, targets.get(peer)) for peer in peers),
    )


def _title(strategy: str) -> str:
    return f"2 workers, {STRATEGIES[strategy]}"


def step_refit(options: Options) -> list[Case]:
    """A second fit() in the same process, to its first optimizer step."""

    def sample(name: str, strategy: str) -> Sample:
        finished = run(options.command(name, "refit", 2, strategy, 2))
        return Sample({STEP: finished.between("called", "stepped")})

    return [_alone_and_ray(options, strategy, sample, 0.1) for strategy in STRATEGIES]


def step_recovery(options: Options) -> list[Case]:
    """kill -9 of a worker to the next optimizer step of all ranks."""

    def sample(name: str, strategy: str) -> Sample:
        finished = run(options.command(name, "recovery", 2, strategy))
        return Sample({STEP: finished.between("killed", "stepped")})

    return [_alone_and_ray(options, strategy, sample, 0.15) for strategy in STRATEGIES]


def _alone_and_ray(
    options: Options, strategy: str, sample: Callable[[str, str], Sample], target: float
) -> Case:
    comparisons = (
        Comparison(STEP, DRAY, target=target if strategy == "ddp" else None),
        Comparison(STEP, DRAY, RAY),
    )
    turns = options.in_turn(lambda name: sample(name, strategy), DRAY, RAY)
    return Case(_title(strategy), "s", turns, comparisons)


def phases(options: Options) -> list[Case]:
    """Measure each part of a start and of a later fit(), to the first optimizer step and after.

    The start of the interpreter is not included in the sum of a start.
    """
    turns = 3 if options.quick else 20

    def sample(name: str) -> Sample:
        finished = run(options.command(DRAY, "phases", 2, turns))
        if name == LATER:
            return Sample(finished.last("later")["phases"])
        imports = {"import of dray.train.torch": finished.last("imported")["seconds"]}
        return Sample(imports | finished.last("first")["phases"])

    turns_of_both = options.in_turn(sample, DRAY, LATER)
    return [Case("2 workers, DDP", "s", turns_of_both, ())]


MEASURES: dict[str, Callable[[Options], list[Case]]] = {
    "step_start": step_start,
    "step_refit": step_refit,
    "step_recovery": step_recovery,
    "phases": phases,
}
