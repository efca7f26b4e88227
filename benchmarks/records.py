"""Records of a program's processes for the harness: lines of JSON in a named pipe."""

import json
import os
import time
from typing import Any

VARIABLE = "BENCHMARK_RECORDS"  # the pipe's path; every process of a program inherits it


def record(event: str, **values: Any) -> None:
    """Tell the harness that an event has just happened."""
    now = time.monotonic()  # one clock for all processes of the machine
    line = json.dumps({"event": event, "time": now, **values}) + "\n"
    pipe = os.open(os.environ[VARIABLE], os.O_WRONLY)
    os.write(pipe, line.encode())
    os.close(pipe)
