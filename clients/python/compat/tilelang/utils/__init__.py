# SPDX-License-Identifier: Apache-2.0
from kiln.profiler import TensorSupplyType, assert_close as torch_assert_close

from .. import _absent
from .tensor import get_tensor_supply
from .target import determine_target

__all__ = ["TensorSupplyType", "determine_target", "get_tensor_supply", "torch_assert_close"]
__getattr__ = _absent.getter(__name__)
