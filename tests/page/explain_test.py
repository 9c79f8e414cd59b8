# SPDX-License-Identifier: Apache-2.0
"""What `kiln explain` says of attention and of a product on targets without tensor copies, and of keys in pages: what the compiler decided, golden.
With KILN_BLESS=1 in the environment the expected texts are written anew; the diff is then the review."""

import os
import pathlib
import subprocess

import pytest

BIN = pathlib.Path(os.environ["KILN_BUILD"]) / "bin"
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "explain"
TARGETS = ("cuda:sm_80", "cuda:sm_89", "hip:gfx942", "hip:gfx1100")


def attention(target):
    from kiln import library

    q = library.Spec((2, 1024, 8, 64), "float16")
    return library.plan("attention", q, q, q, True, None, target=target).program.trace()


def pages(target):
    """Of 16 keys: rows are gathered."""
    from kiln import library

    cache, table = library.Spec((512, 16, 4, 128), "bfloat16"), library.Spec((8, 64), "int32")
    return library.plan("attention_decode", library.Spec((8, 1, 32, 128), "bfloat16"), cache, cache, library.Spec((8,), "int32"), table, None, None,
                        target=target).program.trace()


def product(target):
    from kiln.library.programs.gemm import gemm

    return gemm(1024, 1024, 1024, target=target)


@pytest.mark.parametrize("build, target", [(build, target) for build in (attention, product, pages) for target in TARGETS] +
                         [(pages, "cuda:sm_90a")])
def test_explain(tmp_path, build, target):
    source = tmp_path / "program"
    source.write_bytes(build(target).serialized)
    done = subprocess.run([BIN / "kiln", "explain", source, "-t", target, "--local", "--text"], timeout=300, capture_output=True, text=True,
                          check=True)
    expected = GOLDEN / f"{build.__name__}.{target.split(':')[1]}.expected"
    if os.environ.get("KILN_BLESS"):
        GOLDEN.mkdir(exist_ok=True)
        expected.write_text(done.stdout)
    assert done.stdout == expected.read_text(), f"{expected} differs; if the new text is right, run the test with KILN_BLESS=1"
