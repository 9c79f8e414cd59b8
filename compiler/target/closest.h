// SPDX-License-Identifier: Apache-2.0
//
// What a mistyped name was meant to be.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace kiln::target {

// The candidate that fewest edits of single letters make of the name, where `most` of them or fewer do. Only the first 64 letters count.
std::optional<std::string_view> Closest(std::string_view name, std::span<const std::string_view> candidates, std::size_t most);

// How many edits still look like a slip: one for each three letters, from one to three.
constexpr std::size_t Slips(std::string_view name) { return name.size() < 6 ? 1 : name.size() < 9 ? 2 : 3; }

}  // namespace kiln::target
