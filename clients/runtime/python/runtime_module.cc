// SPDX-License-Identifier: Apache-2.0
//
// kiln._runtime: loads artifacts and launches them from Python. One build for every CPython ≥ 3.11 (stable ABI); it needs
// neither protobuf nor numpy nor torch, and imports none of them unless an argument is one of theirs. The GPU driver is opened
// on the first call that needs one, so importing works everywhere.
//
//   load(artifact: bytes, device: int = 0, *, name: str = "") -> Kernel
//       artifact: a serialized kiln.v1.Artifact. name: how error texts call the kernel; default: the first entry's name.
//       Its code is loaded at once (PTX is compiled by the driver here unless the artifact holds a cubin that fits).
//       ValueError: the bytes are no artifact, or it is for another architecture than the device's. DriverError otherwise.
//
//   class Kernel
//       kernel(*args, stream: int | None = None)
//           args: either one for each parameter in order, or one for each parameter that is not an output. In the second form
//           the outputs are allocated (by torch.empty, numpy.empty or Array, after the kind of the first tensor argument; by
//           Array where there is none) and returned: one bare, several as a list. In the first form the result is None.
//           Tensor arguments may be torch tensors (CUDA or ROCm), numpy arrays (copied to the device and, where the kernel
//           writes them, back; the call then waits), Array, objects with __dlpack_c_exchange_api__,
//           __cuda_array_interface__ or __dlpack__, DLPack capsules, or None where the tensor is empty.
//           Scalars: int, bool, float, or anything with __index__ or __float__.
//           numpy has no bfloat16, tf32 or float8: arrays of uint16, float32 and uint8 are taken for them bit by bit, and
//           ml_dtypes' own types are recognised.
//           stream: a raw stream handle; None: torch's current stream where torch tensors are passed, else the default one.
//           Nothing is launched where the grid is empty. ValueError: an argument does not fit (texts as TileLang's);
//           TypeError: an argument is no tensor or number at all; DriverError: the driver refused.
//       kernel.output_shapes(*args) -> list[tuple[str, tuple[int, ...], str]]     (name, shape, dtype) of each output;
//           args: the parameters that are not outputs.
//       kernel.symbols(*args) -> dict[str, int]       the values that the run-time dimensions take for these arguments
//       kernel.measure(*args, stream=None, warmup=3, repeat=20) -> list[float]
//           microseconds on the device of `repeat` launches, one by one, by events; all parameters are given, none is numpy.
//       kernel.params: list[dict]      {"name", "dtype", "tensor": bool, "output": bool, "written": bool}
//       kernel.resources: list[dict]   one for each launch: {"entry", "registers", "local_bytes", "shared_bytes",
//                                      "dynamic_shared_bytes", "max_threads"}, as the driver says
//       kernel.log: str                what the driver's compiler printed while loading ("" for cubin and HSACO)
//       kernel.loaded_from: str        "ptx", "cubin" or "hsaco"
//       kernel.name, kernel.target: str; kernel.device: int
//
//   devices() -> list[dict]    {"index", "kind": "cuda" | "hip", "name", "arch": "cuda:sm_90a", "memory_bytes",
//                              "driver_version": "13.0"}; empty where there is no driver or no device
//   driver_problem(kind: str) -> str     why the "cuda" or "hip" driver cannot be used, with a hint; "" where it can
//   synchronize(device: int = 0, *, kind: str | None = None)     waits for all work on the device
//   use_driver(kind: str, path: str)     opens `path` as that driver in place of libcuda.so.1 or libamdhip64.so; before the
//                                        first use of that kind, else RuntimeError
//
//   class Array(shape, dtype: str, device: int = 0, *, kind: str | None = None)     device memory, uninitialised, row-major
//       .shape: tuple, .dtype: str, .nbytes: int, .device: int, .data_ptr() -> int, .__cuda_array_interface__
//       .copy_from(buffer)   any C-contiguous bytes-like object of nbytes bytes (a numpy array); waits. Returns self.
//       .copy_to(buffer)     into a writable one; waits. Returns the buffer.
//       .numpy()             a new numpy array (uint16 for bfloat16, uint8 for float8, float32 for tf32)
//       .fill(byte: int)     every byte
//   class Event(device: int = 0, *, kind: str | None = None)
//       .record(stream: int = 0); .synchronize(); .elapsed_ms(since: Event) -> float; .query() -> bool
//
//   class DriverError(RuntimeError)     .name: the driver's name of the error ("CUDA_ERROR_ILLEGAL_ADDRESS"; "" where the
//                                       driver is absent), .operation: what was asked ("launch gemm_kernel")
//
// dtype names are the tile language's: "float16", "bfloat16", "float32", "float64", "tfloat32", "int8" … "uint64", "bool",
// "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int4", "uint4". kind=None: CUDA where there is a CUDA
// device, else HIP.
