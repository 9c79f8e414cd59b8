// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ir/type.h"

namespace kiln::emulator {

// *data = op(*data, *value); `op` is TensorOp's number. Blocks on other threads of the host may do the same at once.
void Atomically(uint32_t op, ir::DType dtype, void* data, const void* value);
// The same, and *value = what *data was. `compare`: of kCompareExchange, which Atomically does not do.
void AtomicallyGivingOld(uint32_t op, ir::DType dtype, void* data, void* value, const void* compare);
// Is the result another where several come in another order?
bool DependsOnOrder(uint32_t op, ir::DType dtype);

}  // namespace kiln::emulator
