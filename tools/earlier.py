"""A Python environment with an earlier revision of dray, and this environment's other packages.

Arguments: the directory of the environment, and a git revision.
"""

import io
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path


def main() -> None:
    """Make the environment from scratch, without downloads."""
    place, revision = Path(sys.argv[1]).absolute(), sys.argv[2]
    archive = subprocess.run(
        ["git", "archive", revision, "src"], stdout=subprocess.PIPE, check=True
    ).stdout
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=False)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(place)
    (site,) = place.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if Path(path).name == "site-packages"]
    lines = [str(place / "src"), *shared]
    (site / "earlier.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
