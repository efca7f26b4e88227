"""Programs written for Ray, after the patterns of its documentation, run with dray unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import programs

if TYPE_CHECKING:
    from tests.support.clusters import Cluster

PATTERNS = Path(__file__).resolve().parents[1] / "support" / "patterns"
EXPECTED = {
    "back_pressure": ["True 2024", "never more than 4 True"],
    "concurrency_groups": ["at a time 2", "opened", "[0, 1, 4, 9]", "25", "released released"],
    "faults": [
        "done at the second try",
        "made again",
        "True True",
        "it did not come in time",
        "it was cancelled",
        "the actor is gone",
    ],
    "generators": ["[0, 50000, 100000, 150000]", "[0, 1, 2]", "[0, 10, 20]", "[0, 1, 2]"],
    "nested_sort": ["True"],
    "own_exceptions": [
        "attempts 3",
        "since it was made 1",
        "counter 1",
        "code 8 True",
        "code 8 True",
    ],
    "parameter_server": [
        "in step: [0.0, 1.0, 2.0, 3.0]",
        "not in step: [0.0, 1.0, 2.0, 3.0]",
    ],
    "pi_with_progress": ["progress 1.0", "pi is about 3.1"],
    "placement": ["bundles 2 CREATED", "True False", "child in it True", "REMOVED"],
    "pool_and_queue": [
        "[0, 1, 4, 9, 16, 25]",
        "[0, 1, 4, 9, 16, 25]",
        "49 False",
        "consumed 520",
        "empty",
    ],
    "tree_of_actors": [
        "['m0.0:1', 'm0.1:4', 'm1.0:9', 'm1.1:16', 'm1.0:25']",
        "ValueError True",
    ],
    "word_count": ["the 4", "quick 3", "a 2", "dog 2", "fox 2", "23 words"],
}


def for_dray(program: str) -> str:
    """Return a program for Ray as one for dray: its imports are all that changes."""
    return program.replace("import ray\n", "import dray as ray\n").replace(
        "from ray.", "from dray."
    )


def test_every_pattern_is_expected_to_say_something() -> None:
    assert {path.stem for path in PATTERNS.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_for_ray_runs_on_the_process_engine(name: str, tmp_path: Path) -> None:
    script = tmp_path / f"{name}.py"
    script.write_text(for_dray((PATTERNS / f"{name}.py").read_text()))
    done = programs.run(script, tmp_path, DRAY_ENGINE="process")
    assert done.stdout.splitlines() == EXPECTED[name], done.stderr
    assert done.returncode == 0


@pytest.mark.cluster
@pytest.mark.parametrize("library", ["ray", "dray"])
@pytest.mark.parametrize("name", EXPECTED)
def test_it_says_the_same_on_a_cluster(
    name: str, library: str, tmp_path: Path, cluster: Cluster
) -> None:
    script = tmp_path / f"{name}.py"
    program = (PATTERNS / f"{name}.py").read_text()
    script.write_text(for_dray(program) if library == "dray" else program)
    variables = {"RAY_ADDRESS": cluster.address, "DRAY_ENGINE": "ray", "RAY_LOG_TO_DRIVER": "0"}
    done = programs.run(script, tmp_path, **variables)
    said = [line for line in done.stdout.splitlines() if line in EXPECTED[name]]  # Ray talks too
    assert said == EXPECTED[name], done.stdout + done.stderr
    assert done.returncode == 0
