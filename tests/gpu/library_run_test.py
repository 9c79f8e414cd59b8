# SPDX-License-Identifier: Apache-2.0
"""What can be checked of the library's GPU run without torch: that every operator has a case."""

import ast
import pathlib

from kiln.library.operation import OPERATIONS

HERE = pathlib.Path(__file__).parent


def test_every_operator_is_checked_by_torch():
    tree = ast.parse((HERE / "library_torch_cases.py").read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "arguments")
    table = next(node for node in ast.walk(function) if isinstance(node, ast.Dict))
    given = {key.value: len(value.elts) for key, value in zip(table.keys, table.values)}
    assert given == {name: len(operation.parameters) for name, operation in OPERATIONS.items()}
