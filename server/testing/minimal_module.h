// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kiln/v1/ir.pb.h"

namespace kiln::server::testing {

// The smallest program: one kernel with an empty body.
inline std::string MinimalModule(const std::string& name = "m") {
  v1::Module module;
  module.set_version(1);
  v1::Expr& one = *module.add_exprs();
  one.set_op(v1::CONST_INT);
  one.set_dtype(v1::I32);
  one.set_int_value(1);
  v1::Var& block = *module.add_vars();
  block.set_kind(v1::BLOCK);
  block.set_dtype(v1::I32);
  v1::Kernel& kernel = *module.add_kernels();
  kernel.add_grid(0);
  kernel.set_threads(128);
  kernel.add_block_vars(0);
  kernel.mutable_body();
  module.mutable_debug()->set_module_name(name);
  module.mutable_debug()->add_kernel_names(name);
  module.mutable_debug()->add_var_names("bx");
  return module.SerializeAsString();
}

}  // namespace kiln::server::testing
