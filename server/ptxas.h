// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <mutex>
#include <string>

namespace kiln::server {

// The ptxas that makes cubins. Asked for its version once, when somebody first needs to know.
class Ptxas {
 public:
  explicit Ptxas(std::filesystem::path path) : path_(std::move(path)) {}

  // The line that names the build ("Build cuda_12.8.r12.8/compiler.35404655_0"); empty where there is no working ptxas.
  std::string Version();

 private:
  const std::filesystem::path path_;
  std::once_flag once_;
  std::string version_;
};

}  // namespace kiln::server
