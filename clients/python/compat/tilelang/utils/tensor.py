# SPDX-License-Identifier: Apache-2.0
from kiln.language.dtypes import as_dtype
from kiln.profiler import TensorSupplyType, assert_close as torch_assert_close, supply

from .. import _absent

__all__ = ["TensorSupplyType", "get_tensor_supply", "torch_assert_close"]


def map_torch_type(name):
    return as_dtype(name).as_torch()


def get_tensor_supply(supply_type=TensorSupplyType.Integer):
    """A function from a parameter (with .shape and .dtype) to a tensor."""
    return lambda param: supply(tuple(param.shape), as_dtype(param.dtype), supply_type)


__getattr__ = _absent.getter(__name__)
