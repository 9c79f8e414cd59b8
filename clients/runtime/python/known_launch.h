// SPDX-License-Identifier: Apache-2.0
//
// What Calls and Launches share: an answer to a call that is not known, and the launch of one that is.
#pragma once

#include <span>

#include "clients/runtime/python/dlpack.h"
#include "clients/runtime/python/python.h"

namespace kiln::runtime::py {

// NotImplemented, without an exception: the call goes the long way, which says what is wrong with it, if anything is.
PyObject* NotKnown();

// Launches on the device's current stream, and gives `result`. What the driver says is raised; arguments that the kernel does not take are not known.
PyObject* LaunchKnown(Kernel& kernel, std::span<const Arg> args, const dlpack::ExchangeApi& exchange, const dlpack::Device& device, Ref result);

}  // namespace kiln::runtime::py
