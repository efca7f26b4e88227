"""Constants for types of accelerators: values of `accelerator_type=`."""

from __future__ import annotations

# Import only modules: every name here that begins with a capital is a constant for users.
import re

from dray import errors

NVIDIA_TESLA_V100 = "V100"
NVIDIA_TESLA_P100 = "P100"
NVIDIA_TESLA_T4 = "T4"
NVIDIA_TESLA_P4 = "P4"
NVIDIA_TESLA_K80 = "K80"
NVIDIA_TESLA_A10G = "A10G"
NVIDIA_L4 = "L4"
NVIDIA_L40S = "L40S"
NVIDIA_A100 = "A100"
NVIDIA_H100 = "H100"
NVIDIA_H200 = "H200"
NVIDIA_H20 = "H20"
NVIDIA_B200 = "B200"
NVIDIA_B300 = "B300"
NVIDIA_GB200 = "GB200"
NVIDIA_GB300 = "GB300"
NVIDIA_RTX_PRO_6000 = "RTX-PRO-6000"
NVIDIA_A100_40G = "A100-40G"
NVIDIA_A100_80G = "A100-80G"

INTEL_MAX_1550 = "Intel-GPU-Max-1550"
INTEL_MAX_1100 = "Intel-GPU-Max-1100"
INTEL_GAUDI = "Intel-GAUDI"

AMD_INSTINCT_MI100 = "AMD-Instinct-MI100"
AMD_INSTINCT_MI250x = "AMD-Instinct-MI250X"
AMD_INSTINCT_MI250 = "AMD-Instinct-MI250X-MI250"
AMD_INSTINCT_MI210 = "AMD-Instinct-MI210"
AMD_INSTINCT_MI300A = "AMD-Instinct-MI300A"
AMD_INSTINCT_MI300x = "AMD-Instinct-MI300X-OAM"
AMD_INSTINCT_MI300x_HF = "AMD-Instinct-MI300X-HF"
AMD_INSTINCT_MI308x = "AMD-Instinct-MI308X-OAM"
AMD_INSTINCT_MI325x = "AMD-Instinct-MI325X-OAM"
AMD_INSTINCT_MI350x = "AMD-Instinct-MI350X-OAM"
AMD_INSTINCT_MI355x = "AMD-Instinct-MI355X-OAM"
AMD_RADEON_R9_200_HD_7900 = "AMD-Radeon-R9-200-HD-7900"
AMD_RADEON_HD_7900 = "AMD-Radeon-HD-7900"

AWS_NEURON_CORE = "aws-neuron-core"

GOOGLE_TPU_V2 = "TPU-V2"
GOOGLE_TPU_V3 = "TPU-V3"
GOOGLE_TPU_V4 = "TPU-V4"
GOOGLE_TPU_V5P = "TPU-V5P"
GOOGLE_TPU_V5LITEPOD = "TPU-V5LITEPOD"
GOOGLE_TPU_V6E = "TPU-V6E"
GOOGLE_TPU_V7X = "TPU-V7X"

HUAWEI_NPU_910B = "Ascend910B"
HUAWEI_NPU_910B4 = "Ascend910B4"

METAX_C500 = "MXC500"
METAX_C550 = "MXC550"

FURIOSA_RNGD = "FURIOSA_RNGD"

MOBILINT_ARIES = "MOBILINT_ARIES"
MOBILINT_REGULUS = "MOBILINT_REGULUS"

APPLE_M1 = "M1"
APPLE_M1_PRO = "M1-Pro"
APPLE_M1_MAX = "M1-Max"
APPLE_M1_ULTRA = "M1-Ultra"
APPLE_M2 = "M2"
APPLE_M2_PRO = "M2-Pro"
APPLE_M2_MAX = "M2-Max"
APPLE_M2_ULTRA = "M2-Ultra"
APPLE_M3 = "M3"
APPLE_M3_PRO = "M3-Pro"
APPLE_M3_MAX = "M3-Max"
APPLE_SILICON = "Apple-Silicon"


def known_types() -> tuple[str, ...]:
    """Return the types that have a constant; a device may have another type."""
    return tuple(_constants().values())


def check_type(kind: object, what: str) -> None:
    """Check that a value can be a type of accelerator; the existing types depend on the nodes.

    Args:
        what: Name of the argument, for the message.

    Raises:
        ConfigError: The value is no text, or empty.
    """
    if not isinstance(kind, str) or not kind.strip():
        raise errors.ConfigError(f"{what} must be text such as 'A100', not {kind!r}")


def meant(kind: str, there: tuple[str, ...] = ()) -> list[str]:
    """Return suggestions for a type that no node has.

    The value of a constant is not taken for a misspelling, so there is no suggestion for it.

    Args:
        kind: The type.
        there: The types that nodes have.

    Example:
        >>> from dray.accelerators.type_names import meant
        >>> meant("a100")
        ['A100']
    """
    constants = _constants()
    if kind in constants:  # the constant's name instead of its value
        return [constants[kind]]
    if kind in known_types():
        return []
    return near_types("-".join(kind.split()), (*there, *known_types()))


def near_types(kind: object, among: tuple[str, ...]) -> list[str]:
    """Return at most three similar types; only one if just the case differs."""
    if not isinstance(kind, str) or not kind.strip():
        return []
    # Google also writes v5e.
    text = re.sub("V5E$", "V5LITEPOD", kind.strip().upper())
    types = {one.upper(): one for one in among}
    if text in types:
        return [types[text]]
    import difflib

    near = [one for one in types if text in one] or difflib.get_close_matches(text, types)
    return [types[one] for one in near][:3]


def _constants() -> dict[str, str]:
    return {name: value for name, value in globals().items() if name[0].isupper()}
