# SPDX-License-Identifier: Apache-2.0
"""Programs that the demo compiles and runs; each module has functions that return a traced tile function."""
