# SPDX-License-Identifier: Apache-2.0
"""Calls of all of the library's operators, tensors by shape and dtype: what the tests compile."""

from kiln.library import Spec


def rows(m, n, dtype):
    x, w, row = Spec((m, n), dtype), Spec((n,), dtype), Spec((m,), "float32")
    return {
        "rms_norm": (x, w, 1e-6), "rms_norm_backward": (x, x, w, 1e-6), "layer_norm": (x, w, w, 1e-5),
        "layer_norm_backward": (x, x, w, row, row),
        "norm_weight_backward": (x, x, row, row), "softmax": (x,), "softmax_backward": (x, x), "cross_entropy": (x, Spec((m,), "int64")),
        "cross_entropy_backward": (row, x, Spec((m,), "int64"), row), "swiglu": (Spec((m, 2 * n), dtype),),
        "swiglu_backward": (x, Spec((m, 2 * n), dtype)),
        "transpose": (x,), "reduce": (x, 0, "max"), "quantize_rows": (x,)}


def caches():
    """Attention over caches; in pages as well, and of many heads."""
    half, lengths, list_of = "bfloat16", Spec((16,), "int32"), Spec((1, 64, 512), "int32")
    pages, latent = Spec((4096, 16, 4, 128), half), Spec((16, 4096, 576), half)
    return {
        "attention_decode": (Spec((16, 1, 32, 128), half), pages, pages, lengths, Spec((16, 256), "int32"), Spec((32,), "float32"), None),
        "latent_attention": (Spec((16, 1, 128, 576), half), latent, lengths, None, None),
        "sparse_latent_attention": (Spec((1, 64, 128, 576), half), Spec((1, 4096, 576), half), list_of, True, None)}


def products(m):
    half, e4 = "bfloat16", "float8_e4m3fn"
    lse = Spec((2, 8, m), "float32")
    a, w, q, angle = Spec((m, 4096), half), Spec((1024, 4096), half), Spec((2, m, 8, 128), half), Spec((2, m, 64), "float32")
    return {
        "matmul": (a, w, Spec((1024,), half), Spec((m, 1024), half), Spec((m,), "float32"), "gelu", False, True, None, False, False),
        **caches(), "gemv": (w, Spec((4096,), half), None), "attention": (q, q, q, True, None),
        "scaled_attention": (*[Spec((2, m, 8, 128), e4)] * 3, *[Spec((8,), "float32")] * 3, True, None, None),
        "attention_with_lse": (q, q, q, True, None), "attention_backward": (q, q, q, q, lse, q, True, None, False), "rope": (q, angle, angle),
        "scaled_matmul": (Spec((m, 4096), e4), Spec((1024, 4096), e4), Spec((32, m), "float32"), Spec((8, 32), "float32"), None),
        "grouped_matmul": (Spec((256, 4096), half), Spec((4, 1024, 4096), half), Spec((2,), "int32"), False),
        "quantized_matmul": (a, Spec((1024, 512), "uint32"), Spec((32, 1024), half), "int4", 128)}


CASES = [(f"{name}-{n}-{dtype}", name, given) for n, dtype in ((1000, "bfloat16"), (4096, "float32"), (50000, "float16"))
         for name, given in rows(64, n, dtype).items()]
CASES += [(f"attention_decode-{dim}-{page}-{heads}-{tokens}", "attention_decode",
           (Spec((16, tokens, heads, dim), "bfloat16"), *[Spec((16, 8192, 4, dim) if page == 0 else (4096, page, 4, dim), "bfloat16")] * 2,
            Spec((16,), "int32"), Spec((16, 256), "int32") if page else None, None, None))
          for dim in (64, 128, 256) for page in (0, 16, 64) for heads, tokens in ((4, 1), (32, 4), (64, 8))]
CASES += [(f"block_sparse_attention-{dim}-{block}", "block_sparse_attention",
           (*[Spec((2, 1000, 8, dim), "bfloat16")] * 3, Spec((2, 8, -(-1000 // block), 5), "int32"), Spec((2, 8, -(-1000 // block)), "int32"), block,
            dim == 80, None)) for dim in (64, 80, 128, 256) for block in (64, 128)]
CASES += [(f"linear_attention-{keys}-{decays}", "linear_attention",
           (*[Spec((2, 1000, 2, keys), "bfloat16")] * 2, Spec((2, 1000, 8, 80), "bfloat16"), Spec((2, 1000, 8), "float32") if decays else None))
          for keys in (16, 64, 128, 256) for decays in (False, True)]
CASES += [(f"latent_attention-{heads}-{page}", "latent_attention",
           (Spec((16, 1, heads, 576), "bfloat16"), Spec((1024, page, 576) if page else (16, 8192, 576), "bfloat16"), Spec((16,), "int32"),
            Spec((16, 64), "int32") if page else None, None)) for heads in (16, 32) for page in (0, 16)]
CASES += [(f"{name}-{m}", name, given) for m in (5, 1000) for name, given in products(m).items()]
