"""A download of the jars of Hadoop 2.7 with NameNode and DataNode, from pyspark 2.4 of PyPI.

Before pip keeps a package's file, it runs the package's `setup.py` for the metadata. This one needs
wheel, and a setuptools that is not too new.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

PACKAGE = "pyspark==2.4.8"
# Of the 226 jars of Spark: Hadoop's jars, and the jars that these import.
NEEDED = (
    "hadoop-",
    "commons-",
    "guava-",
    "htrace-",
    "jackson-core-asl-",
    "jackson-mapper-asl-",
    "javax.servlet-api-",
    "javax.ws.rs-api-",
    "jetty-",
    "jsr305-",
    "leveldbjni-",
    "log4j-",
    "netty-",
    "protobuf-java-",
    "servlet-",
    "slf4j-",
    "xercesImpl-",
    "xmlenc-",
)


def main() -> int:
    """Download the jars into a directory; return 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    jars = parser.parse_args().target / "jars"
    jars.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=True)
        pip = [f"{directory}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "setuptools<81", "wheel"], check=True)
        fetch = ["download", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
        command = [*pip, *fetch, "--no-binary", "pyspark", "--dest", directory, PACKAGE]
        subprocess.run(command, check=True)
        (package,) = Path(directory).glob("pyspark-*.tar.gz")
        with tarfile.open(package) as archive:
            for member in archive:
                name = Path(member.name).name
                content = archive.extractfile(member) if name.endswith(".jar") else None
                if content is not None and name.startswith(NEEDED):
                    (jars / name).write_bytes(content.read())
    return 0


if __name__ == "__main__":
    sys.exit(main())
