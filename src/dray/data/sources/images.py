"""Opening images with Pillow, except for PostScript files, which are programs."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from dray.checks import require

if TYPE_CHECKING:
    from PIL import Image

# EPS is PostScript, which Pillow runs in Ghostscript; IPTC may contain an image of any format.
_PROGRAMS = ("EPS", "IPTC")


def open_image(content: bytes) -> Image.Image:
    """Open an image; its format is determined by its content, not by the name of its file.

    Raises:
        ValueError: The image may be PostScript, or has too many pixels.
        MissingDependencyError: Pillow is not installed.
    """
    require("PIL", "pillow")
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(content))
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error
    if image.format in _PROGRAMS:
        raise ValueError(
            f"it is in {image.format}, and to show it may run any code of its author in "
            "Ghostscript: convert it to PNG first"
        )
    return image
