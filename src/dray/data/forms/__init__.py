"""The forms of rows: blocks, batches, tensors."""
