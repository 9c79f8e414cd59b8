// SPDX-License-Identifier: Apache-2.0
//
// What every pass may read: the target and the request's options.
#pragma once

#include "compiler/target/target.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::compiler {

struct Context {
  const target::Target* target;
  v1::CompileOptions options;

  // Bytes that tensors' addresses are a multiple of.
  int64_t pointer_alignment() const { return options.pointer_alignment() == 0 ? 16 : options.pointer_alignment(); }
};

}  // namespace kiln::compiler
