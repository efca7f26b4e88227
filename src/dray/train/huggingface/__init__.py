"""Libraries of Hugging Face in the workers of a TorchTrainer."""

from dray.answers import answer_for

__all__ = ["transformers"]

answer_for(__name__, later=("transformers",))
