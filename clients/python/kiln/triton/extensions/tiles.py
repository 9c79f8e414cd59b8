# SPDX-License-Identifier: Apache-2.0
"""What works on blocks alone: loads, tiles of blocks, running sums."""

from __future__ import annotations

from .. import language as tl
from ..build import describe
from ..builtin import Builtin
from ..errors import Refusal


def builtin(function):
    return Builtin(function, package="tle")


@builtin
def load(b, pointer, mask=None, other=None, boundary_check=(), padding_option="", cache_modifier="", eviction_policy="", volatile=False,
         is_async=False):
    """tl.load. ``is_async``: a hint, and no warning follows from it, for it asks for what the compiler does anyway: a block that products take
    is copied to shared memory asynchronously where its addresses allow it, with the hint and without."""
    if not isinstance(is_async, (bool, int)):
        raise Refusal(f"tle.load(is_async={describe(is_async)}): it is True or False, known when the kernel is compiled")
    return tl.load.run(b, pointer, mask, other, boundary_check, padding_option, cache_modifier, eviction_policy, volatile)
