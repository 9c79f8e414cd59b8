// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace kiln::server {

// What was said where, each as "--name=value" or as a person typed it.
struct Said {
  const std::vector<std::string>& file;
  std::string file_name;
  const std::vector<std::string>& environment;
  const std::vector<std::string>& flags;
};

// Every setting as a line of TOML with its origin behind it; the whole is a config file that means the same.
std::string Effective(const CLI::App& app, const Said& said);

// KILN_STATE_DIR, for state-dir.
std::string VariableOf(std::string_view setting);

}  // namespace kiln::server
