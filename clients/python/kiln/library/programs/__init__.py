# SPDX-License-Identifier: Apache-2.0
"""Programs of the library beside those of ``kiln.examples``: rows of any length, gradients, products with more behind or around them. Each
module has functions that return a traced tile function."""
