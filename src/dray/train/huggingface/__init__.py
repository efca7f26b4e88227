"""Libraries of Hugging Face in the workers of a TorchTrainer."""

from dray.compat.attributes import attach_getattr

__all__ = ["transformers"]

attach_getattr(__name__, later=("transformers",))
