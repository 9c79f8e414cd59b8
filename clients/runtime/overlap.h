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

// Whether an element of one has a byte of an element of the other. Tensors between whose elements the other's lie do not overlap. True too
// where their elements lie in too many places for an answer.
bool Overlap(const Tensor& a, const Tensor& b);

// What is wrong with the tensors of a call, one argument for each parameter; absent: nothing. All lie in one address space.
std::optional<std::string> ForbiddenOverlap(const Binder& binder, std::span<const Arg> args);

}  // namespace kiln::runtime
