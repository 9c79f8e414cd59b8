# SPDX-License-Identifier: Apache-2.0
from kiln import _manifest, _proto


def test_what_fits_is_one_part():
    assert _manifest.split([3, 3, 4], 2, limit=10, items=6) == [[0, 1, 2]]
    assert _manifest.split([], 0) == [[]]


def test_each_part_is_a_sample_of_the_whole():
    assert _manifest.split([5] * 6, 1, limit=15) == [[0, 2, 4], [1, 3, 5]]
    assert _manifest.split([1] * 4, 3, items=7) == [[0, 2], [1, 3]]


def test_every_request_is_in_one_part_within_the_limits():
    sizes = [i * 37 % 61 for i in range(200)]
    sizes[17] = 5000
    parts = _manifest.split(sizes, 4, limit=100, items=40)
    assert sorted(index for part in parts for index in part) == list(range(200))
    assert all(part and (len(part) == 1 or sum(sizes[i] for i in part) <= 100) and len(part) * 4 <= 40 for part in parts)


def test_progress_is_one_over_all_parts():
    message = _proto.messages().EnsureProgress
    progress = _manifest.Progress(6)
    progress.begin([0, 2, 4, 5])
    half = progress.note(message(total=8, known=1, compiled=3, elapsed_seconds=2, remaining_seconds=2, kernels=[{"request": 3}]))
    assert half.total == 12 and half.remaining_seconds == 4 and half.kernels[0].request == 5
    progress.note(message(total=8, known=1, compiled=6, failed=1, elapsed_seconds=4, remaining_seconds=0))
    progress.begin([1, 3])
    begun = progress.note(message(total=4, known=1, elapsed_seconds=1, kernels=[{"request": 0}]))
    assert (begun.total, begun.known, begun.compiled, begun.failed, begun.elapsed_seconds) == (12, 2, 6, 1, 5)
    assert not begun.HasField("remaining_seconds") and begun.kernels[0].request == 1
    end = progress.note(message(total=4, known=1, compiled=3, elapsed_seconds=2, remaining_seconds=0))
    assert end.known + end.compiled + end.failed == end.total == 12 and end.remaining_seconds == 0
