# SPDX-License-Identifier: Apache-2.0
from kiln.bench import do_bench
from kiln.profiler import Profiler, TensorSupplyType

from . import _absent

__all__ = ["Profiler", "TensorSupplyType", "do_bench"]
__getattr__ = _absent.getter(__name__)
