// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

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

// Whether the words, each "--name=value" or as a person typed it, have that setting.
bool Names(const std::vector<std::string>& words, const std::string& setting);

// Whether it may be given several times, with all its values meant.
bool MayRepeat(const CLI::Option& option);

// KILN_STATE_DIR, for state-dir.
std::string VariableOf(std::string_view setting);

}  // namespace kiln::server
