"""A place: where a run, a checkpoint or a file of them lies."""

from __future__ import annotations

from pathlib import Path

Place = Path
