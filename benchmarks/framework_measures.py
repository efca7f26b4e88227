"""The measures of frameworks against their own launchers: start, steps, cost of reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.cases import DRAY, RAY, Case, Comparison, Options, Sample
from benchmarks.harness import Finished, run
from benchmarks.stepping import ALONE, FORKED

FIRST_STEP = "to first step"
SECOND_FIT = "second fit() to first step"
RESTART = "kill to next step"
RATE = "steps a second"
CALLBACK = "report callback, a step"

_LAUNCHERS = {
    "lightning": "Lightning's DDP",
    "transformers": "torchrun",
    "accelerate": "accelerate launch",
    "xgboost": "its own processes",
    "lightgbm": "its own processes",
}
_FORKS = "its own processes, forked"
_ONE = "one plain process"  # without a launcher, the fastest possible start
_TITLES = {
    "lightning": "Lightning",
    "transformers": "Transformers",
    "accelerate": "Accelerate",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
}
_VISION = "tests/support/beside_torch"  # for frameworks that import torchvision
_WORKERS = 2
_TREES = ("xgboost", "lightgbm")


def _trained(
    options: Options, framework: str, name: str, steps: int, fits: int = 1, kill: int | None = None
) -> Finished:
    """Run a framework's program as a contestant."""
    root = options.programs.parent
    environment = {"PYTHONPATH": f"{root / _VISION}:{root}"}
    workers = 1 if name == _ONE else _WORKERS
    arguments = [workers, steps, fits, *([] if kill is None else [kill])]
    if name in (DRAY, RAY):
        return run(options.command(name, framework, *arguments), environment)
    script = str(options.programs / f"program_{framework}.py")
    command = [script, FORKED if name == _FORKS else ALONE, *map(str, arguments)]
    if name == _ONE:
        return run([options.python, *command], {**environment, "OMP_NUM_THREADS": "1"})
    if framework == "transformers":
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, f"--nproc-per-node={_WORKERS}", *command]
    elif framework == "accelerate":
        launcher = ["-m", "accelerate.commands.launch", "--multi_gpu"]
        command = [*launcher, f"--num_processes={_WORKERS}", *command]
        environment["ACCELERATE_USE_CPU"] = "true"
    return run([options.python, *command], environment)


def framework_start(options: Options) -> list[Case]:
    """Start of a script with a framework to its first step, against its own launcher and Ray's."""

    def sample(framework: str, name: str) -> Sample:
        finished = _trained(options, framework, name, 12)
        return Sample({FIRST_STEP: finished.until("stepped")})

    cases = []
    for framework, launcher in _LAUNCHERS.items():
        peers = (launcher, _FORKS if framework in _TREES else _ONE, RAY)
        targets = {launcher: 0.6, RAY: 0.2}
        cases.append(
            Case(
                _TITLES[framework],
                "s",
                options.in_turn(partial(sample, framework), DRAY, *peers),
                tuple(Comparison(FIRST_STEP, DRAY, peer, targets.get(peer)) for peer in peers),
            )
        )
    return cases


def _dray_alone(options: Options, sample: Callable[[str, str], Sample], measure: str) -> list[Case]:
    """Return a case of each framework, without a peer."""
    return [
        Case(
            title,
            "s",
            options.in_turn(partial(sample, framework), DRAY),
            (Comparison(measure, DRAY),),
        )
        for framework, title in _TITLES.items()
    ]


def framework_refit(options: Options) -> list[Case]:
    """A second fit() with a framework in one process, to its first step."""

    def sample(framework: str, name: str) -> Sample:
        finished = _trained(options, framework, name, 12, fits=2)
        return Sample({SECOND_FIT: finished.between("called", "stepped")})

    return _dray_alone(options, sample, SECOND_FIT)


def framework_recovery(options: Options) -> list[Case]:
    """kill -9 of a worker that trains with a framework, to the next attempt's first step."""

    def sample(framework: str, name: str) -> Sample:
        finished = _trained(options, framework, name, 12, kill=6)
        return Sample({RESTART: finished.between("killed", "stepped")})

    return _dray_alone(options, sample, RESTART)


def framework_rates(options: Options) -> list[Case]:
    """Throughput of a framework, against that under its own launcher."""

    def sample(framework: str, name: str) -> Sample:
        finished = _trained(options, framework, name, 60 if options.quick else 300)
        return Sample({RATE: finished.last("trained")["rate"]})

    return [
        Case(
            _TITLES[framework],
            "a second",
            options.in_turn(partial(sample, framework), DRAY, launcher),
            (Comparison(RATE, DRAY, launcher, 0.98, at_least=True),),
        )
        for framework, launcher in _LAUNCHERS.items()
    ]


def framework_report(options: Options) -> list[Case]:
    """Time of the report callback in each step; 1 % of a step of 10 ms is 100 µs."""

    def sample(framework: str, name: str) -> Sample:
        finished = _trained(options, framework, name, 60 if options.quick else 300)
        return Sample({CALLBACK: finished.last("trained")["callback_s"]})

    return [
        Case(
            title,
            "s",
            options.in_turn(partial(sample, framework), DRAY),
            (Comparison(CALLBACK, DRAY, target=100e-6),),
        )
        for framework, title in _TITLES.items()
    ]


MEASURES: dict[str, Callable[[Options], list[Case]]] = {
    "framework_start": framework_start,
    "framework_refit": framework_refit,
    "framework_recovery": framework_recovery,
    "framework_rates": framework_rates,
    "framework_report": framework_report,
}
