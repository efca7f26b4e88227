"""The names of the resources and labels by which a node describes its accelerators, as in Ray."""

# A node with A100s offers 1 of `accelerator_type:A100`; a request for 0.001 of it selects the node.
ACCELERATOR_TYPE = "accelerator_type:"
ACCELERATOR_TYPE_QUANTITY = 0.001

# Labels.
ACCELERATOR_TYPE_LABEL = "ray.io/accelerator-type"
SLICE_NAME_LABEL = "ray.io/tpu-slice-name"
WORKER_ID_LABEL = "ray.io/tpu-worker-id"
TOPOLOGY_LABEL = "ray.io/tpu-topology"
POD_TYPE_LABEL = "ray.io/tpu-pod-type"
