"""The opening of images by Pillow, but of none that is a program."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from dray.checks import require

if TYPE_CHECKING:
    from PIL import Image

# Formats that Pillow has Ghostscript run, as PostScript; IPTC may hold an image of any other one.
_PROGRAMS = ("EPS", "IPTC")


def open_image(content: bytes) -> Image.Image:
    """Open an image, whatever its file is named.

    Raises:
        ValueError: It may be PostScript.
        MissingDependencyError: Pillow is not installed.
    """
    require("PIL", "pillow")
    from PIL import Image

    image = Image.open(io.BytesIO(content))
    if image.format in _PROGRAMS:
        raise ValueError(
            f"it is in {image.format}, and to show it may run any code of its author in "
            "Ghostscript: convert it to PNG first"
        )
    return image
