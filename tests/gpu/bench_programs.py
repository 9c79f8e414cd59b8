# SPDX-License-Identifier: Apache-2.0
"""What the benchmark's rows call: functions of ``kiln.library``, as users call them, and the program that a call is served by."""

from kiln import library
from kiln.library.operation import OPERATIONS


def specs(row):
    """The row's arguments, tensors by shape and dtype."""
    return [library.Spec(a[0], a[1]) if isinstance(a, tuple) else a for a in row["arguments"]]


def planned(row, target):
    """How ``kiln.library`` serves the row's call."""
    return library.plan(row["function"], *specs(row), target=target)


def program(row, target):
    """(the tile function, the fields of CompileOptions that it is compiled with)"""
    plan = planned(row, target)
    return plan.program.trace(), dict(plan.options)


def call(row, tensors):
    """A call of the function on these tensors, which returns its results as a tuple."""
    given = iter(tensors)
    arguments = [next(given) if isinstance(a, tuple) else a for a in row["arguments"]]
    function = OPERATIONS[row["function"]]

    def run():
        results = function(*arguments)
        return results if isinstance(results, tuple) else (results,)

    return run
