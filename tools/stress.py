"""A stress test: repeated process tests beside busy loops, to find failures under load."""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys


def spin() -> None:
    """Keep one core busy."""
    while True:
        pass


def main() -> int:
    """Run the rounds; return 1 as soon as one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--busy", type=int, default=2, help="busy loops beside the tests")
    parser.add_argument(
        "tests",
        nargs="*",
        default=[
            "tests/engines/test_lifetime_integration.py",
            "tests/train/test_errors_integration.py",
            "tests/train/test_interrupts_integration.py",
        ],
    )
    options = parser.parse_args()
    loops = [multiprocessing.Process(target=spin, daemon=True) for _ in range(options.busy)]
    for loop in loops:
        loop.start()
    for number in range(1, options.rounds + 1):
        print(f"round {number} of {options.rounds}", flush=True)
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", *options.tests])
        if done.returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
