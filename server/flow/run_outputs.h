// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "kiln/v1/run.pb.h"

namespace kiln::server {

// Bytes that the outputs of a run need which its worker is to allocate, each in whole pages of `page` bytes; `reply` is a serialized
// CompileReply. 0 where there are none, or where the arguments do not fit the kernel or the outputs are more than `most` bytes: the
// worker says so.
std::uint64_t OutputBytes(const v1::RunStart& start, std::string_view reply, std::uint64_t page, std::uint64_t most);

}  // namespace kiln::server
