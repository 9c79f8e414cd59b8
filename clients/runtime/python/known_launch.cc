// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/python/known_launch.h"

namespace kiln::runtime::py {

PyObject* NotKnown() {
  PyErr_Clear();
  Py_INCREF(Py_NotImplemented);
  return Py_NotImplemented;
}

PyObject* LaunchKnown(Kernel& kernel, std::span<const Arg> args, const dlpack::ExchangeApi& exchange, const dlpack::Device& device, Ref result) {
  void* stream = nullptr;
  if (exchange.current_stream(device.type, device.index, &stream) != 0) return NotKnown();
  Result<void> launched;
  {
    WithoutGil released;
    launched = kernel.Launch(args, stream);
  }
  if (launched) return result.release();
  return launched.error().kind == Error::Kind::kDriver ? Raise(launched.error()) : NotKnown();
}

}  // namespace kiln::runtime::py
