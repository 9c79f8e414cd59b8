# SPDX-License-Identifier: Apache-2.0
"""Kiln: a compilation service for tile-level GPU kernels."""
