# SPDX-License-Identifier: Apache-2.0
"""Properties of a GPU, asked of its driver."""

from .... import _absent
from .cuda_driver import (
    get_clock, get_cuda_device_properties, get_device_attribute, get_device_name, get_max_dynamic_shared_size_bytes, get_memory_bandwidth,
    get_num_sms, get_persisting_l2_cache_max_size, get_registers_per_block, get_shared_memory_per_block,
)

__all__ = ["get_clock", "get_cuda_device_properties", "get_device_attribute", "get_device_name", "get_max_dynamic_shared_size_bytes",
           "get_memory_bandwidth", "get_num_sms", "get_persisting_l2_cache_max_size", "get_registers_per_block", "get_shared_memory_per_block"]
__getattr__ = _absent.getter(__name__)
