"""A measure: its contestants, which run in turn, and the quantities that are compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster

DRAY = "dray"
DRAY_ON_RAY = "dray on Ray"
RAY = "Ray Train"
RAY_CORE = "Ray Core"
TORCHRUN = "torchrun"
PLAIN_JAX = "plain JAX"
PLAIN_TORCH = "plain PyTorch"
TORCH = "import torch"


@dataclass(frozen=True)
class Sample:
    """The figures of one run of one contestant: quantity -> value, with details."""

    values: dict[str, float]
    details: Any = None


@dataclass(frozen=True)
class Comparison:
    """A quantity of a contestant, alone or divided by a peer's, with its target.

    Args:
        quantity: Name of one of the sample's values.
        subject: The contestant.
        peer: The contestant to divide by, or None.
        target: The upper limit, or with `at_least` the lower limit; None if there is no target.
    """

    quantity: str
    subject: str
    peer: str | None = None
    target: float | None = None
    at_least: bool = False


@dataclass(frozen=True)
class Case:
    """Contestants that run one after another, round after round.

    Args:
        title: Name of the case within its measure.
        unit: "s", "MB", "images/s" or "a second".
        contestants: Name -> a function that runs the contestant once; None if it cannot run here.
        comparisons: Comparisons to make.
        rounds: Number of rounds in one run.
        nodes: The CPUs of each node of the Ray cluster that the case needs; empty without cluster.
    """

    title: str
    unit: str
    contestants: Mapping[str, Callable[[], Sample] | None]
    comparisons: tuple[Comparison, ...]
    rounds: int = 1
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    python: str
    ray_python: str | None
    cluster: Cluster
    ray_all: bool = False
    quick: bool = False
    programs: Path = field(default=Path(__file__).parent.absolute())

    def command(self, contestant: str, program: str, workers: int, *rest: object) -> list[str]:
        """Return the command that runs a program as a contestant."""
        script = str(self.programs / f"program_{program}.py")
        arguments = [str(workers), *map(str, rest)]
        if contestant in (RAY, RAY_CORE):
            return [str(self.ray_python), script, "ray", *arguments]
        if contestant.startswith(DRAY_ON_RAY):  # driver and cluster need the same Python and Ray
            return [str(self.ray_python), script, "dray", *arguments]
        if contestant.startswith(TORCHRUN):
            launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
            return [self.python, "-m", *launcher, script, "torchrun", *arguments]
        library = "plain" if contestant in (PLAIN_JAX, PLAIN_TORCH) else "dray"
        return [self.python, script, library, *arguments]

    def in_turn(
        self, sample: Callable[[str], Sample], *names: str
    ) -> dict[str, Callable[[], Sample] | None]:
        """Return the contestants of a case; those that need Ray are None if Ray is missing."""

        def bound(name: str) -> Callable[[], Sample] | None:
            if name.startswith((RAY, RAY_CORE, DRAY_ON_RAY)) and self.ray_python is None:
                return None
            return lambda: sample(name)

        return {name: bound(name) for name in names}
