// SPDX-License-Identifier: Apache-2.0
//
// Data that a recipe describes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kiln/v1/tune.pb.h"

namespace kiln::server {

// What is wrong with the recipe; nothing where it can be made.
std::optional<std::string> ProblemOf(const v1::TuneArgument& argument);

// Makes the bytes of a tensor whose recipe has no problem, piece after piece. The same arguments give the same bytes. False when `write` did
// not take a piece.
bool Fill(const v1::TuneArgument& argument, std::uint64_t seed, const std::function<bool(std::uint64_t position, std::string_view data)>& write);

}  // namespace kiln::server
