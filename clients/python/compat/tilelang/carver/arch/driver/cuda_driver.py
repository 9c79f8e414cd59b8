# SPDX-License-Identifier: Apache-2.0
"""Properties of a GPU. What torch does not say of an NVIDIA GPU comes from its driver (libcuda.so.1), which has it under the numbers that
CUDA's run time uses."""

import ctypes
import functools

from .... import _absent

# CUDA Driver API, CUdevice_attribute.
_SHARED_PER_BLOCK, _REGISTERS_PER_BLOCK, _SHARED_PER_MULTIPROCESSOR, _PERSISTING_L2 = 8, 12, 81, 108
_CLOCK, _MEMORY_CLOCK, _MEMORY_BITS = 13, 36, 37
_UNITS = {"bytes": 1, "kb": 1 << 10, "mb": 1 << 20}


@functools.lru_cache(maxsize=None)
def _driver():
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as absent:
        raise RuntimeError(f"the properties of an NVIDIA GPU are asked of its driver, which is not here: {absent}") from absent
    if status := library.cuInit(0):
        raise RuntimeError(f"the NVIDIA driver does not start: cuInit gives {status}")
    return library


def get_device_attribute(attr: int, device_id: int = 0) -> int:
    """The value of an attribute by its number in CUDA's list. RuntimeError where there is no such GPU or no such attribute."""
    value = ctypes.c_int()
    if status := _driver().cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(attr), ctypes.c_int(device_id)):
        raise RuntimeError(f"attribute {attr} of GPU {device_id}: cuDeviceGetAttribute gives {status}")
    return value.value


def get_cuda_device_properties(device_id: int = 0):
    """torch's description of the GPU; None without one."""
    import torch

    return torch.cuda.get_device_properties(device_id) if torch.cuda.is_available() else None


def get_device_name(device_id: int = 0):
    """Its name; None without a GPU."""
    properties = get_cuda_device_properties(device_id)
    return None if properties is None else properties.name


def _size(number: int, unit: str) -> int:
    if unit not in _UNITS:
        raise ValueError(f"format {unit!r}: one of {', '.join(_UNITS)}")
    return number // _UNITS[unit]


def get_shared_memory_per_block(device_id: int = 0, format: str = "bytes") -> int:
    """What a block has without asking for more. ``format``: "bytes", "kb" or "mb"."""
    return _size(get_device_attribute(_SHARED_PER_BLOCK, device_id), format)


def get_max_dynamic_shared_size_bytes(device_id: int = 0, format: str = "bytes") -> int:
    """What a multiprocessor has. ``format``: "bytes", "kb" or "mb"."""
    return _size(get_device_attribute(_SHARED_PER_MULTIPROCESSOR, device_id), format)


def get_persisting_l2_cache_max_size(device_id: int = 0) -> int:
    return get_device_attribute(_PERSISTING_L2, device_id)


def get_num_sms(device_id: int = 0) -> int:
    """Multiprocessors; compute units of an AMD GPU, for which torch answers as well. RuntimeError without a GPU."""
    properties = get_cuda_device_properties(device_id)
    if properties is None:
        raise RuntimeError("torch finds no GPU here, whose multiprocessors are asked for")
    return properties.multi_processor_count


def get_clock(device_id: int = 0) -> int:
    """Of the multiprocessors, in Hz."""
    return get_device_attribute(_CLOCK, device_id) * 1000


def get_memory_bandwidth(device_id: int = 0) -> int:
    """Bytes of memory that move in a second: on both edges of its clock, over the width of its bus."""
    return get_device_attribute(_MEMORY_CLOCK, device_id) * 1000 * 2 * get_device_attribute(_MEMORY_BITS, device_id) // 8


def get_registers_per_block(device_id: int = 0) -> int:
    return get_device_attribute(_REGISTERS_PER_BLOCK, device_id)


__getattr__ = _absent.getter(__name__)
