"""Libraries of Hugging Face in the workers of a TorchTrainer."""

from typing import TYPE_CHECKING

from dray.compat.attributes import attach_getattr

__all__ = ["transformers"]

attach_getattr(__name__, later=("transformers",))

if TYPE_CHECKING:
    from dray.train.huggingface import transformers as transformers
