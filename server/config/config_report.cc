// SPDX-License-Identifier: Apache-2.0
#include "server/config/config_report.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "server/system/json_text.h"

namespace kiln::server {
namespace {

std::string OriginOf(const std::string& setting, const Said& said) {
  if (Names(said.flags, setting)) return "flag";
  if (Names(said.environment, setting)) return "environment, " + VariableOf(setting);
  if (Names(said.file, setting)) return said.file_name;
  return "default";
}

std::string Quoted(const std::string& text) {
  std::string quoted;  // a basic string of TOML is one of JSON
  AppendQuoted(quoted, text);
  return quoted;
}

// As TOML. Sizes are numbers of bytes here, whatever unit they were given in.
std::string ValueOf(const CLI::Option& option) {
  if (MayRepeat(option) && option.count() > 0) {
    std::string array;
    for (const std::string& text : option.results()) array += (array.empty() ? "[" : ", ") + Quoted(text);
    return array + "]";
  }
  const std::string text = option.count() > 0 ? option.as<std::string>() : option.get_default_str();
  if (option.get_expected_max() == 0) return option.count() > 0 && text == "true" ? "true" : "false";
  if (!text.empty() && text.find_first_not_of("0123456789") == text.npos && (text == "0" || text[0] != '0')) return text;
  return Quoted(text);
}

}  // namespace

bool Names(const std::vector<std::string>& words, const std::string& setting) {
  const std::string flag = "--" + setting;
  return std::ranges::any_of(words, [&](const std::string& word) { return word == flag || word.starts_with(flag + "="); });
}

bool MayRepeat(const CLI::Option& option) { return option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll; }

std::string VariableOf(std::string_view setting) {
  std::string variable = fmt::format("KILN_{}", setting);
  std::ranges::transform(variable, variable.begin(), [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
  return variable;
}

std::string Effective(const CLI::App& app, const Said& said) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    const std::string setting = option->get_single_name();
    if (setting == "help" || setting == "version" || setting == "config" || setting == "check-config") continue;
    const std::string line = fmt::format("{} = {}", setting, ValueOf(*option));
    const bool unset = line.ends_with(" = \"\"");
    text += fmt::format("{}{:<{}} # {}\n", unset ? "# " : "", line, unset ? 48 : 50, unset ? "not set" : OriginOf(setting, said));
  }
  return text;
}

}  // namespace kiln::server
