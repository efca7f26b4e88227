"""The command `python -m benchmarks`: measures dray and its peers, prints and saves the tables."""

import argparse
import json
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import harness, tables
from benchmarks.before import against_before
from benchmarks.cases import Case, Options, Sample
from benchmarks.cluster import Cluster
from benchmarks.measures import MEASURES, start
from benchmarks.results import Outcome
from dray import host


def main() -> None:
    """Run the measures that the command line names; return 1 if a run failed."""
    arguments = _parse()
    if arguments.list:
        for name, measure in MEASURES.items():
            print(f"{name:16} {measure.__doc__}")
        return
    path = Path(arguments.ray_python or "").absolute()
    ray_python = str(path) if path.is_file() else None
    options = Options(
        python=sys.executable,
        ray_python=ray_python,
        cluster=Cluster(ray_python),
        ray_all=arguments.ray_all,
        quick=arguments.quick,
    )
    harness.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # with clean-up, like Ctrl-C
    cases = [(name, case) for name in arguments.only for case in _cases(name, options, arguments)]
    _warm_up(options, {name for _, case in cases if not case.nodes for name in case.contestants})
    runs = arguments.runs or (2 if arguments.quick else 5)
    with options.cluster as cluster:
        outcomes = [_measure(name, case, runs, cluster) for name, case in cases]
    _write(outcomes, options, arguments.out)
    if any(None in samples for outcome in outcomes for samples in outcome.samples.values()):
        sys.exit(1)


def _cases(name: str, options: Options, arguments: argparse.Namespace) -> Sequence[Case]:
    """Return the cases of a measure, with dray's peers or with an earlier dray."""
    cases = MEASURES[name](options)
    if arguments.before_python is None:
        return cases
    earlier = replace(options, python=str(Path(arguments.before_python).absolute()))
    return list(against_before(cases, MEASURES[name](earlier)))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--ray-python", help="a Python that has Ray Train; else it is left out")
    parser.add_argument(
        "--before-python", help="a Python that has an earlier dray, to compare with in place of all"
    )
    parser.add_argument("--ray-all", action="store_true", help="Ray Train with every worker count")
    parser.add_argument("--runs", type=int, help="runs of each case (default: 5, quick: 2)")
    parser.add_argument("--only", type=_names, default=list(MEASURES), help="NAME[,NAME]")
    parser.add_argument("--list", action="store_true", help="list the measures")
    parser.add_argument("--quick", action="store_true", help="fewer runs of less work")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(MEASURES):
        raise argparse.ArgumentTypeError(f"there is no measure {', '.join(sorted(unknown))}")
    return names


def _warm_up(options: Options, names: set[str]) -> None:
    """Run each contestant once, so that files and bytecode are in memory before the first round."""
    for case in start(options):
        if case.title == "2 workers":
            for name, sample in case.contestants.items():
                if sample and (name in names or name.partition(",")[0] in names):
                    _attempt(f"warm-up: {name}", sample)


def _measure(measure: str, case: Case, runs: int, cluster: Cluster) -> Outcome:
    """Run the contestants of a case in turn, round after round, on the cluster that it needs.

    Every other round has the reverse order, so that the predecessor of a contestant varies.
    """
    if cluster.become(case.nodes):
        for name, sample in case.contestants.items():
            if sample is not None:
                _attempt(f"warm-up of a cluster: {name}", sample)
    samples: dict[str, list[Sample | None]] = {name: [] for name in case.contestants}
    for number in range(runs * case.rounds):
        forward = list(case.contestants.items())
        for name, sample in forward if number % 2 == 0 else reversed(forward):
            if sample is not None:
                title = f"{measure}, {case.title}, round {number + 1}: {name}"
                samples[name].append(_attempt(title, sample))
    return Outcome(measure, case, samples)


def _attempt(title: str, sample: Callable[[], Sample]) -> Sample | None:
    """Run one contestant once; return None if it failed."""
    try:
        result = sample()
    except harness.ProgramFailed as error:
        print(f"{title}: failed: {error}", file=sys.stderr, flush=True)
        return None
    figures = ", ".join(f"{name} {value:.4g}" for name, value in result.values.items())
    print(f"{title}: {figures}", file=sys.stderr, flush=True)
    return result


def _write(outcomes: Sequence[Outcome], options: Options, place: Path) -> None:
    """Write the tables and every sample to a new pair of files, and print the tables."""
    now = datetime.now().astimezone()
    machine = {"cores": host.cpu_count(), "memory_gib": round(host.memory_bytes() / 2**30)}
    versions = _versions(options)
    page = tables.render(
        outcomes,
        [
            f"Date: {now.date()}",
            f"Machine: {machine['cores']} cores, {machine['memory_gib']} GiB",
            "Versions: " + ", ".join(f"{name} {number}" for name, number in versions.items()),
        ],
    )
    everything: dict[str, Any] = {
        "date": now.isoformat(timespec="seconds"),
        "machine": machine,
        "versions": versions,
        "outcomes": [outcome.as_json() for outcome in outcomes],
    }
    place.mkdir(parents=True, exist_ok=True)
    stem = now.strftime("%Y-%m-%d_%H-%M-%S")
    (place / f"{stem}.md").write_text(page, encoding="utf-8")
    (place / f"{stem}.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    print(page)


def _versions(options: Options) -> dict[str, str]:
    versions = {"python": platform.python_version(), "linux": platform.release()}
    versions |= {name: version(name) for name in ("dray", "torch", "jax")}
    if options.ray_python:
        code = "from importlib.metadata import version as v; print(v('ray'), v('torch'))"
        command = [options.ray_python, "-c", code]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        versions |= {"ray": told[0], "torch beside ray": told[1]}
    return versions


if __name__ == "__main__":
    main()
