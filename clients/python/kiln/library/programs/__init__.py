# SPDX-License-Identifier: Apache-2.0
"""The programs that serve calls of ``kiln.library``. Each module has functions that return a traced tile function; the library chooses among
them, and their sizes come from ``kiln.tiles``. ``kiln.examples`` has short programs to learn from."""
