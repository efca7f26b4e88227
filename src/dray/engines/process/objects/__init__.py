"""The object store: values, shared memory, and the references that keep them."""
