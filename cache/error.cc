// SPDX-License-Identifier: Apache-2.0
#include "cache/error.h"

namespace kiln::cache {

std::string_view ToString(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kDamaged: return "damaged";
    case ErrorCode::kUnreachable: return "unreachable";
    case ErrorCode::kFull: return "full";
    case ErrorCode::kOverloaded: return "overloaded";
    case ErrorCode::kInvalid: return "invalid";
    case ErrorCode::kRefused: return "refused";
    case ErrorCode::kClosed: return "closed";
  }
  return "unknown";
}

}  // namespace kiln::cache
