"""A campaign of faults: kills, flipped bytes, wrong input and endurance, with a verdict on each.

Usage: python -m tools.campaign [NAME ...]. Without a name, all parts run. The status is 1 if data
was lost, a program hung, something was left behind, or a failure had no error of dray.
"""

from __future__ import annotations

import argparse
import sys
import time

from tools.campaign import endurance, flips, inputs, kills

# Name -> function that runs the part, and returns its figures and the faults that it found.
PARTS = {
    "ranks": kills.of_ranks,
    "servers": kills.of_fork_servers,
    "drivers": kills.of_drivers,
    "flips": flips.of_bytes,
    "inputs": inputs.wrong_inputs,
    "endurance": endurance.many_in_one_process,
}


def main() -> int:
    """Run the parts that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the full counts")
    options = parser.parse_args()
    wrong = 0
    for name in options.parts or PARTS:
        began = time.monotonic()
        figures, faults = PARTS[name](options.seed, options.scale)
        said = ", ".join(f"{what} {value}" for what, value in figures.items())
        print(f"{name}: {said}; {time.monotonic() - began:.0f} s; {len(faults)} faults", flush=True)
        for fault in faults:
            print(f"  {fault}", flush=True)
        wrong += len(faults)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
