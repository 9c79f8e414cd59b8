# SPDX-License-Identifier: Apache-2.0
"""Names of ``triton.language`` that Kiln does not have, and what to use."""

NAMES = {
    "float8e4b15": "use tl.float8e4nv, or read the bytes as tl.uint8",
}
