"""The names under which a node shows its accelerators: of resources and of labels, as on Ray."""

# A node with A100s has 1 of `accelerator_type:A100`, and asking for 0.001 of it selects such nodes.
ACCELERATOR_TYPE = "accelerator_type:"
ACCELERATOR_TYPE_QUANTITY = 0.001

# Labels.
ACCELERATOR_TYPE_LABEL = "ray.io/accelerator-type"
SLICE_NAME_LABEL = "ray.io/tpu-slice-name"
WORKER_ID_LABEL = "ray.io/tpu-worker-id"
TOPOLOGY_LABEL = "ray.io/tpu-topology"
POD_TYPE_LABEL = "ray.io/tpu-pod-type"
