"""The API reference has an entry for every name that users import."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference"
# Modules, and a name that has an entry already.
WITHOUT_ENTRY = (
    *("dray.util.accelerators", "dray.train.collective"),
    "dray.train.backend.BackendConfig",
    *(
        f"dray.util.multiprocessing.{name}" for name in ("JoinableQueue", "TimeoutError")
    ),  # Python's
)
OF_OTHERS = ("lightgbm", "lightning", "tensorflow", "transformers", "xgboost")


@pytest.mark.parametrize(
    ("page", "modules"),
    [
        ("core", ["dray"]),
        (
            "util",
            [
                "dray.util",
                *(
                    f"dray.util.{name}"
                    for name in (
                        *("collective", "dask", "joblib", "metrics", "multiprocessing", "queue"),
                        *("scheduling_strategies", "state"),
                    )
                ),
            ],
        ),
        ("train", ["dray.train", "dray.train.collective", "dray.train.backend"]),
        ("torch", ["dray.train.torch"]),
        ("jax", ["dray.train.jax"]),
        ("lightgbm", ["dray.train.lightgbm"]),
        ("lightning", ["dray.train.lightning"]),
        ("tensorflow", ["dray.train.tensorflow", "dray.train.tensorflow.keras"]),
        ("transformers", ["dray.train.huggingface.transformers"]),
        ("xgboost", ["dray.train.xgboost"]),
        ("accelerators", ["dray.accelerators"]),
        ("testing", ["dray.testing"]),
    ],
)
def test_every_name_has_an_entry(page: str, modules: list[str]) -> None:
    if page in OF_OTHERS and importlib.util.find_spec(page) is None:
        pytest.skip(f"{page} is not installed")
    names = [
        f"{module}.{name}"
        for module in modules
        for name in importlib.import_module(module).__all__
        if not name.startswith("__")
    ]
    entries = re.findall(r"^::: (\S+)$", (PAGES / f"{page}.md").read_text(), re.MULTILINE)
    assert entries == [name for name in names if name not in WITHOUT_ENTRY]
