# SPDX-License-Identifier: Apache-2.0
"""What TileLang has and Kiln does not: each name with what to use instead, for error messages and for the reference."""

from __future__ import annotations

_ROWS = (
    ("barriers are placed by the compiler: use T.copy and T.gemm, whose effects the next statement sees",
     "create_barriers named_barrier_arrive "
     "ptx_arrive_barrier ptx_arrive_barrier_expect_tx ptx_fence_barrier_init ptx_init_barrier_thread_count "
     "tvm_storage_sync"),
    ("use T.copy; the compiler chooses the instruction",
     "tma_load tma_load_2sm tma_store_arrive create_tma_descriptor ptx_cp_async_bulk ptx_ldmatrix ldg32 "
     "ldg64 ldg128 ldg256 stg32 stg64 stg128 stg256 lds32 lds64 lds128 sts32 sts64 sts128"),
    ("use T.gemm; the compiler chooses the instruction",
     "wgmma_mma warpgroup_arrive warpgroup_commit_batch warpgroup_wait warpgroup_fence_operand "
     "ptx_mma_sm70 ptx_wgmma_ss ptx_wgmma_rs mma_fill mma_store tvm_mfma tvm_mfma_store tvm_rdna_wmma tvm_rdna_wmma_store "
     "alloc_wgmma_desc initialize_wgmma_descriptor tcgen05_gemm tcgen05_mma alloc_tmem deallocate_tmem"),
    ("products of blocks with scales are not part of this version: scale the sums of T.gemm, as kiln.examples.scaled does",
     "tcgen05_gemm_blockscaled tcgen05_mma_blockscaled mma_gemm_blockscaled ptx_mma_block_scale make_blockscaled_gemm_layout"),
    ("use T.gemm_sp; the compiler chooses the instruction", "wgmma_gemm_sp tcgen05_gemm_sp ptx_mma_sp"),
    ("C and CUDA source is not compiled by the tile language; write the function in it, or in LLVM's IR or PTX for T.call",
     "call_extern call_pure_extern import_source CUDASourceCodeKernel call_intrin call_llvm_intrin call_packed"),
    ("use T.sync_grid, or open another T.Kernel in the same function, for launches run in order",
     "sync_global"),
    ("warp specialisation is inferred", "annotate_ws_schedule"),
    ("blocks that take the work of others which have not begun are Blackwell's: loop over tiles with T.Persistent",
     "clc_try_cancel clc_try_cancel_multicast clc_is_canceled clc_get_first_ctaid_x clc_get_first_ctaid_y clc_get_first_ctaid_z"),
    ("tensors are parameters: declare them as T.Tensor or T.StridedTensor, or make one of an address with T.ptr and T.make_tensor",
     "address_of tvm_access_ptr"),
    ("launches are opened by T.Kernel; T.get_thread_binding and T.get_block_binding give indices",
     "launch_thread thread_return"),
    ("the order of tiles is T.Persistent's or the compiler's", "PersistentTileScheduler BaseTileScheduler"),
    ("it is not part of this version: compute it from T.exp, T.log, T.sqrt and their kin, or on the host",
     "asin acos atan atan2 asinh acosh atanh hypot copysign ldexp nextafter"),
    ("use T.alloc_shared, T.alloc_fragment, T.alloc_local or T.alloc_global", "allocate"),
)

# Name → what to use.
INSTEAD = {name: hint for hint, names in _ROWS for name in names.split()}

# Arguments that are refused where the function itself is there: (call, what to use).
ARGUMENTS = (
    ("T.gemm(…, mbar=…)", "leave it out, with the wait that goes with it: the next statement sees the product"),
    ("T.Kernel(…, prelude=…)", "write the function in the tile language"),
    ("T.sync_threads(barrier_id, arrive_count) to which other threads come than so many", "leave the call out: the compiler places the barriers"),
    ("T.atomic_add(…, return_prev=True) of a tile, and its kin", "write a T.Parallel loop over the tile"),
    ("T.cast(…, round=\"rs\", rbits=…)", "add noise below the last place, then T.cast"),
)
