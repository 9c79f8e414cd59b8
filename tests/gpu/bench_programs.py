# SPDX-License-Identifier: Apache-2.0
"""The benchmark's programs by name: the examples, as they stand."""

from kiln.examples import bandwidth, long_rows, products, rows
from kiln.examples.gemm import gemm

BUILDERS = {
    "gemm": gemm, "with_epilogue": products.with_epilogue, "batched": products.batched, "grouped": products.grouped, "block_scaled": products.block_scaled,
    "packed_weights": products.packed_weights, "packed_mxfp4": products.packed_mxfp4, "rms_norm": rows.rms_norm, "softmax": rows.softmax, "softmax_online": rows.softmax_online,
    **{name: getattr(bandwidth, name) for name in ("layer_norm", "layer_norm_backward", "cross_entropy", "rope", "swiglu", "transpose",
                                                   "column_sum", "row_sum", "quantize_rows")},
    **{name: getattr(long_rows, name) for name in ("rms_norm_long", "layer_norm_long", "layer_norm_backward_long", "softmax_long", "quantize_rows_long")},
}


def build(builder, arguments):
    return BUILDERS[builder](**arguments)
