"""The forms of rows: blocks, batches and tensors."""
