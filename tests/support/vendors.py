"""Stubs of vendors' packages for PyTorch, with gloo behind what they register."""

# What torch_npu, torch_xla and Gaudi's bridge do to PyTorch when they are imported.
STUB = """
import torch
from torch import distributed

class Device:
    chosen = None
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 8)
    @staticmethod
    def set_device(device): Device.chosen = str(device)

def gloo(store, rank, size, timeout):
    return distributed.ProcessGroupGloo(store, rank, size, timeout)
"""
NPU = f"""{STUB}
torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", Device)
distributed.Backend.register_backend("hccl", gloo, devices=["npu", "cpu"])
"""
HPU = f"""{STUB}
torch._register_device_module("hpu", Device)
distributed.Backend.register_backend("hccl", gloo, devices=["hpu", "cpu"])
"""
XLA = f"""{STUB}
distributed.Backend.register_backend("xla", gloo, devices=["xla", "cpu"])
"""
# Builds for CUDA and for Intel's GPUs, as far as choosing a device goes.
GPUS = f"""{STUB}
for module in (torch.cuda, torch.xpu):
    module.is_available, module.device_count = Device.is_available, Device.device_count
    module.set_device = Device.set_device
"""
# A build for CUDA, as far as a process group of NCCL needs one.
NCCL = """
from torch import distributed
from torch.distributed import distributed_c10d

class ProcessGroupNCCL(distributed.ProcessGroupGloo):
    class Options: pass
    def __init__(self, store, rank, size, options):
        super().__init__(store, rank, size, options._timeout)

distributed_c10d.ProcessGroupNCCL = ProcessGroupNCCL
distributed_c10d.is_nccl_available = lambda: True
"""
STUBS = {
    "torch_npu": NPU,
    "habana_frameworks.torch.core": "",
    "habana_frameworks.torch.distributed.hccl": HPU,
    "torch_xla.distributed.xla_backend": XLA,
}
