// SPDX-License-Identifier: Apache-2.0
//
// Which tensors of a call share memory. Kernels are compiled for tensors that do not, where they write one of them, but for those that the
// program lets overlap.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "clients/runtime/bind.h"

namespace kiln::runtime {

// Whether an element of one tensor shares a byte with an element of the other. Tensors whose elements lie between each other's do not
// overlap. Also true if their elements lie in too many places to tell.
bool Overlap(const Tensor& a, const Tensor& b);

// What is wrong with the tensors of a call, one argument for each parameter; absent: nothing. All lie in one address space.
std::optional<std::string> ForbiddenOverlap(const Binder& binder, std::span<const Arg> args);

}  // namespace kiln::runtime
