"""The Ray cluster for the measures that need one."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Finished, Program, run

_PROGRAM = Path(__file__).parent.absolute() / "program_cluster.py"


class Cluster:
    """At most one Ray cluster on this machine, started for the first program that runs on it.

    Args:
        python: A Python that has Ray; None if there is none, and then no program may run.
    """

    def __init__(self, python: str | None) -> None:
        self._python = python
        self._nodes: tuple[int, ...] = ()
        self._address: str | None = None
        self._running = contextlib.ExitStack()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *error: object) -> None:
        """End every process of the cluster."""
        self._address = None
        self._running.close()

    def become(self, nodes: tuple[int, ...]) -> bool:
        """End the cluster unless it has these nodes.

        Args:
            nodes: The CPUs of each node; empty without cluster.

        Returns:
            Whether the next program will run on a new cluster.
        """
        if nodes != self._nodes:
            self.__exit__()
        self._nodes = nodes
        return bool(nodes) and self._address is None

    def run(self, command: Sequence[str], **variables: str) -> Finished:
        """Run a program to its end, on the cluster.

        Args:
            command: The program.
            **variables: Further environment variables of the program.

        Raises:
            ProgramFailed: The program failed or took too long, or the cluster did not start.
        """
        if self._address is None:
            self._address = self._start()
        return run(command, {"RAY_ADDRESS": self._address, "DRAY_ENGINE": "ray", **variables})

    def _start(self) -> str:
        with contextlib.ExitStack() as stack:
            command = [str(self._python), str(_PROGRAM), *map(str, self._nodes)]
            program = stack.enter_context(Program(command))
            address: str = next(program.records())["address"]
            self._running = stack.pop_all()
        return address
