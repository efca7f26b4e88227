"""The measures of training on one NVIDIA GPU; a machine without GPU has no cases."""

from collections.abc import Callable

from benchmarks.cases import DRAY, PLAIN_TORCH, RAY, TORCHRUN, Case, Comparison, Options, Sample
from benchmarks.harness import run
from dray.accelerators.vendors.nvidia import Nvidia

TO_STEP = "start to first optimizer step"
REFIT = "second fit() to first optimizer step"
RECOVERY = "kill -9 to next optimizer step"
PER_STEP = "one step"
FORK = "bare fork"
FITS, STEPS = 3, 300


def gpu(options: Options) -> list[Case]:
    """One worker on one NVIDIA GPU: start, second fit, recovery, one step."""

    def sample(name: str) -> Sample:
        if name == FORK:
            script = str(options.programs / "program_gpu.py")
            finished = run([options.python, script, "fork", "1", str(FITS), "0"])
            return Sample({REFIT: finished.between("called", "stepped", 1)})
        finished = run(options.command(name, "gpu", 1, FITS, STEPS))
        values = {
            TO_STEP: finished.until("stepped", 0),
            PER_STEP: finished.last("trained")["seconds_per_step"],
        }
        if name in (DRAY, RAY):
            values[REFIT] = finished.between("called", "stepped", 1)
            values[RECOVERY] = finished.between("killed", "stepped")
        return Sample(values)

    if Nvidia().find() is None:
        return []
    peers = (PLAIN_TORCH, TORCHRUN, RAY)
    comparisons = (
        *(Comparison(TO_STEP, DRAY, peer) for peer in peers),
        *(Comparison(PER_STEP, DRAY, peer) for peer in peers),
        Comparison(REFIT, DRAY),
        Comparison(REFIT, DRAY, FORK),
        Comparison(REFIT, DRAY, RAY),
        Comparison(RECOVERY, DRAY),
        Comparison(RECOVERY, DRAY, RAY),
    )
    return [Case("1 worker", "s", options.in_turn(sample, DRAY, FORK, *peers), comparisons)]


MEASURES: dict[str, Callable[[Options], list[Case]]] = {"gpu": gpu}
