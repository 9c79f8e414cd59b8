# SPDX-License-Identifier: Apache-2.0
"""kiln.sparse.compress: what is kept of sparse matrices, and where it was."""

import sys
import types

import numpy as np
import pytest

from kiln import sparse


def restored(values, places, k, keeps, group):
    """The matrix again, chunk by chunk as the format says."""
    m, matrix = len(values), np.zeros((len(values), k), values.dtype)
    bits = 8 * places.itemsize
    for row in range(m):
        for at in range(k // group):
            chunk = int(places[row, at * 4 // bits]) >> at * 4 % bits & 15
            for which in range(keeps):
                place = chunk >> 2 * which & 3
                matrix[row, at * group + (place if keeps == 2 else place // 2)] = values[row, at * keeps + which]
    return matrix


@pytest.mark.parametrize("meta", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, np.int16, np.float32, np.int32])
def test_there_and_back(dtype, meta):
    rng = np.random.default_rng(1)
    keeps, group = (1, 2) if np.dtype(dtype).itemsize == 4 else (2, 4)
    dense = rng.integers(1, 100, (6, 64 // group, group))
    drop = np.argsort(rng.random(dense.shape), -1)[..., : group - keeps]
    np.put_along_axis(dense, drop, 0, -1)
    dense[:2] = 0  # no element, one element
    dense[1, :, group - 1] = 5
    dense = dense.reshape(6, 64).astype(dtype)
    values, places = sparse.compress(dense, meta)
    assert values.dtype == dense.dtype and values.shape == (6, 32) and places.dtype == meta
    assert (restored(values, places, 64, keeps, group) == dense).all()
    first = [int(p) >> 2 * i & 3 for p in places.view(f"u{places.dtype.name.lstrip('u')}").ravel() for i in range(4 * places.itemsize)]
    assert all(a < b or (keeps == 1 and (a, b) in ((0, 1), (2, 3))) for a, b in zip(first[::2], first[1::2])), "places ascend"


def test_minus_zero_is_zero():
    values, places = sparse.compress(np.array([[-0.0, 1, 2, -0.0]] * 2, np.float16).reshape(1, 8), "uint8")
    assert values.tolist() == [[1, 2, 1, 2]] and places.tolist() == [[0b1001_1001]]


class Codes:
    """A tensor of 8-bit floats, as far as compress asks for one."""

    device = None

    def __init__(self, codes, dtype):
        self.codes, self.dtype = codes, dtype

    def __getattr__(self, name):
        answers = {"element_size": 1, "is_floating_point": self.dtype != "torch.int8", "numpy": self.codes}
        return lambda *_: answers.get(name, self)


@pytest.mark.parametrize("dtype, kept", [("torch.float8_e4m3fn", [1, 2]), ("torch.float8_e4m3fnuz", [-128, 1])])
def test_nan_is_kept_where_it_has_the_bits_of_minus_zero(monkeypatch, dtype, kept):
    torch = types.SimpleNamespace(int8="torch.int8", int16="torch.int16", int32="torch.int32", from_numpy=lambda codes: Codes(codes, "torch.int8"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    codes = np.array([[-128, 1, 0 if "fnuz" in dtype else 2, 0] * 2], np.int8)
    values, _ = sparse.compress(Codes(codes, dtype), "int8")
    assert values.codes.tolist() == [kept * 2]


def test_what_is_refused():
    with pytest.raises(ValueError, match="row 1 has more than 2 of 4 elements that are not zero from column 4 on"):
        sparse.compress(np.array([[0] * 8, [0, 0, 1, 1, 1, 1, 0, 1]], np.int8), "int8")
    with pytest.raises(ValueError, match="rows of 24 elements: an element of int16 is for 16, so 32 are needed"):
        sparse.compress(np.zeros((2, 24), np.float16))
    with pytest.raises(ValueError, match="metadata of float16: an integer type"):
        sparse.compress(np.zeros((2, 16), np.float16), "float16")
    with pytest.raises(ValueError, match="elements of 8, 16 or 32 bits"):
        sparse.compress(np.zeros((2, 16), np.float64))
    with pytest.raises(ValueError, match="it has two dimensions"):
        sparse.compress(np.zeros(16, np.float16))
