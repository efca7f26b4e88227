"""Names of Ray Train's constants that mean something here."""

import os

from dray.compat.attributes import attach_getattr

__all__ = [
    "DEFAULT_STORAGE_PATH",
    "ENABLE_SHARE_CUDA_VISIBLE_DEVICES_ENV",
    "RAY_CHDIR_TO_TRIAL_DIR",
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S",
    "TRAIN_DATASET_KEY",
]

DEFAULT_STORAGE_PATH = os.path.expanduser("~/dray_results")
ENABLE_SHARE_CUDA_VISIBLE_DEVICES_ENV = "TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES"
RAY_CHDIR_TO_TRIAL_DIR = "RAY_CHDIR_TO_TRIAL_DIR"
TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S = "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S"
# The key under which trainers look for the data set to train on.
TRAIN_DATASET_KEY = "train"

attach_getattr(__name__)
