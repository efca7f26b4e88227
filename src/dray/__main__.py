"""The command line as a module: `python -m dray` is `dray`."""

import sys

from dray.cli import main

sys.exit(main())
