// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <utility>

namespace kiln::runtime {

struct Error {
  enum class Kind {
    kArgument,  // what the caller passed does not fit the kernel
    kArtifact,  // the artifact is damaged or for another device
    kDriver,    // the driver is absent or refused
  };
  Kind kind;
  std::string message;    // what was asked, why it failed, what to try
  std::string name;       // kDriver: the driver's own name, "CUDA_ERROR_ILLEGAL_ADDRESS"; empty where it is absent
  std::string operation;  // kDriver: what was asked of it
  // kArgument, where tensors start between the addresses that the kernel relies on: what a compile with
  // CompileOptions.pointer_alignment has to be told to take them. 0 otherwise.
  uint32_t alignment = 0;
};

template <class T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> ArgumentError(std::string message) {
  return std::unexpected(Error{Error::Kind::kArgument, std::move(message), {}, {}});
}
inline std::unexpected<Error> ArtifactError(std::string message) {
  return std::unexpected(Error{Error::Kind::kArtifact, std::move(message), {}, {}});
}

}  // namespace kiln::runtime
