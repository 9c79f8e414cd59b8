# SPDX-License-Identifier: Apache-2.0
"""The programs that serve calls of ``kiln.library``. Each module has functions that return a traced tile function; the library chooses among
them, and their sizes come from ``kiln.library.sizes``, those of products from the
daemon's planner. ``kiln.examples`` has short programs to learn from."""
