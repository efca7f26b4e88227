"""The names in a run's directory: its own, and those that checkpoints may have."""

from __future__ import annotations

import os

from dray.errors import ConfigError, join_names
from dray.train.storage.paths import check_name

RUN = "run.json"
EVENTS = "events.jsonl"
METRICS = "metrics"
LOGS = "logs"
WORKING = "working_dir"
_OWN = (RUN, EVENTS, "events", METRICS, LOGS, WORKING)
# Of 255: names of what is being replaced or deleted are longer.
_LONGEST = 200


def is_checkpoint_name(name: str) -> bool:
    """Return whether a name in a run's directory may be that of a checkpoint."""
    return bool(name) and not name.startswith(".") and name not in _OWN


def check_checkpoint_name(name: str) -> None:
    """Check that a name in a run's directory can be that of a checkpoint."""
    check_name(name, "checkpoint_dir_name")
    if not is_checkpoint_name(name):
        raise ConfigError(
            f"checkpoint_dir_name must be another name than {name!r}: the run directory has "
            f"{join_names(_OWN)} of its own, and names that begin with a dot"
        )
    if len(os.fsencode(name)) > _LONGEST:
        raise ConfigError(
            f"checkpoint_dir_name must be a name of at most {_LONGEST} bytes, not {name!r}"
        )
