"""Every Python snippet of the README and the guides runs as a script, as a reader would run it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "docs/guide.md",
    "docs/checkpoints.md",
    "docs/storage.md",
    "docs/scaling.md",
    "docs/boosting.md",
    "docs/data.md",
    "docs/lightning.md",
    "docs/transformers.md",
    "docs/accelerate.md",
    "docs/tensorflow.md",
    "docs/jax.md",
    "docs/migrate.md",
    "docs/sweeps.md",
    "docs/tracking.md",
)

# PyPI's torchvision, beside a torch without CUDA.
STAND_IN = str(ROOT / "tests/support/beside_torch")
# Trackers that are large to install: what the page calls of them, and no more.
STUBS = {
    "mlflow": """
def start_run(*, run_name): assert run_name
def log_metrics(metrics, *, step): print("mlflow", {k: float(v) for k, v in metrics.items()}, step)
def log_artifacts(directory, path): raise AssertionError
def end_run(): print("mlflow ended")
""",
    "wandb": """
class Run:
    def log(self, metrics): print("wandb", metrics)
    def finish(self): print("wandb finished")

def init(*, project, id, resume, config):
    assert resume == "allow"
    assert "/" not in id
    return Run()
""",
}


def snippets(*pages: str) -> list[tuple[str, str]]:
    return [
        (f"{page}-{number}", code)
        for page in pages
        for number, code in enumerate(
            re.findall(
                r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
            )
        )
    ]


@pytest.mark.parametrize(("name", "code"), snippets(*PAGES))
def test_snippet_runs(name: str, code: str, tmp_path: Path) -> None:
    run_snippet(code, tmp_path, trains=".fit()" in code)


@pytest.mark.parametrize(
    ("name", "code"), snippets("docs/core.md", "docs/accelerators.md", "docs/new-accelerator.md")
)
def test_snippet_of_the_core_runs(name: str, code: str, tmp_path: Path) -> None:
    run_snippet(code, tmp_path, trains=False)


@pytest.mark.parametrize("engine_name", ["ray"], indirect=True)
@pytest.mark.parametrize(("name", "code"), snippets("docs/cluster.md"))
def test_snippet_runs_on_a_cluster(
    name: str, code: str, tmp_path: Path, variables: dict[str, str]
) -> None:
    run_snippet(code, tmp_path, trains=True, **variables)


def run_snippet(code: str, tmp_path: Path, *, trains: bool = True, **variables: str) -> None:
    for package, stub in STUBS.items():
        if f"import {package}" in code and importlib.util.find_spec(package) is None:
            (tmp_path / f"{package}.py").write_text(stub)
    for package in ("optuna", "tensorboard", "tensorflow"):
        if package in code:
            pytest.importorskip(package)
    script = tmp_path / "snippet.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(tmp_path, HOME=str(tmp_path), PYTHONPATH=STAND_IN, **variables),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("FINISHED" in done.stdout) == trains
