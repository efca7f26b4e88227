"""The API reference has an entry for every name that users import."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference"


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("core", "dray"),
        ("util", "dray.util"),
        ("train", "dray.train"),
        ("torch", "dray.train.torch"),
        ("jax", "dray.train.jax"),
        ("lightgbm", "dray.train.lightgbm"),
        ("xgboost", "dray.train.xgboost"),
        ("tensorflow", "dray.train.tensorflow"),
        ("accelerators", "dray.accelerators"),
        ("testing", "dray.testing"),
    ],
)
def test_every_name_has_an_entry(page: str, module: str) -> None:
    entries = re.findall(r"^::: (\S+)$", (PAGES / f"{page}.md").read_text(), re.MULTILINE)
    if page in ("lightgbm", "tensorflow", "xgboost"):
        pytest.importorskip(page)
    public = importlib.import_module(module)
    names = [
        f"{module}.{name}"
        for name in public.__all__
        if not name.startswith("__") and not inspect.ismodule(getattr(public, name))
    ]
    assert entries == names
