# SPDX-License-Identifier: Apache-2.0
"""Properties of the current device."""

from ... import _absent


def get_num_sms(device_id: int = 0) -> int:
    import torch

    return torch.cuda.get_device_properties(device_id).multi_processor_count


__getattr__ = _absent.getter(__name__)
