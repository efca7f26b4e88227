"""The command line as a module: `python -m dray` runs `dray`."""

import sys

from dray.cli import main

sys.exit(main())
