# SPDX-License-Identifier: Apache-2.0
"""Short programs to learn from, each in a file that can be read alone. Each function returns a traced tile function.

- ``add``: tiles in registers.
- ``rows``: softmax and RMSNorm; reductions.
- ``gemm``: a product; tiles in shared memory, a pipelined loop.
- ``products``: a batch of products, and a product with an epilogue.
- ``packed``: weights of 4 bits, unpacked on the way to the product.
- ``scaled``: 8-bit floats with scales for blocks.
- ``attention``: FlashAttention; two products and an online softmax.

``programs`` lists programs by name, for the demo and the tests; ``dump`` writes them to files. The kernels that ``kiln.library`` calls are
in ``kiln.library.programs``: they have more variants, and are tuned."""
