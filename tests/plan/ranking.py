# SPDX-License-Identifier: Apache-2.0
"""What a ranking is worth: the time of what it chooses, against the fastest of all that were measured."""

import json
import pathlib

TOP = 10  # candidates that a tuner would measure first


def measurements(path: pathlib.Path) -> dict:
    """A file of tests/plan/*.json, with ``rows``: (sizes, microseconds) of the candidates that ran."""
    data = json.loads(path.read_text())
    at = data["columns"].index("us")
    data["rows"] = [(dict(zip(data["columns"], row[:at])), row[at]) for row in data["candidates"] if not isinstance(row[-1], str)]
    return data


def worth(rows, expected) -> tuple[float, float]:
    """(the best of the first ``TOP``, the first): parts of the fastest's speed. ``expected``: the planner's microseconds of each row."""
    order = sorted(range(len(rows)), key=lambda index: (expected[index], index))
    times = [rows[index][1] for index in order]
    return min(times) / min(times[:TOP]), min(times) / times[0]


def geomean(values) -> float:
    product, count = 1.0, 0
    for value in values:
        product, count = product * value, count + 1
    return product ** (1 / max(count, 1))
