# SPDX-License-Identifier: Apache-2.0
"""What ``tle`` has: Triton's language extensions, on the graph that kernels become."""
