// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/suggestion.h"

#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "compiler/target/closest.h"

namespace kiln::cli {
namespace {

// The command that was given, from the outermost on: `kiln cache ls` is three.
std::vector<const CLI::App*> Given(const CLI::App& app) {
  std::vector<const CLI::App*> given = {&app};
  while (!given.back()->get_subcommands().empty()) given.push_back(given.back()->get_subcommands().front());
  return given;
}

std::vector<std::string> Commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

// The options that are understood, including those of the enclosing commands.
std::vector<std::string> Options(const std::vector<const CLI::App*>& given) {
  std::vector<std::string> names;
  for (const CLI::App* app : given) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

std::string Line(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string_view> candidates(known.begin(), known.end());
  const auto meant = target::Closest(word, candidates, target::Slips(word));
  return meant && *meant != word ? fmt::format("{} is not known: did you mean {}?\n", word, *meant) : "";
}

}  // namespace

std::string DidYouMean(const CLI::App& app) {
  const std::vector<const CLI::App*> given = Given(app);
  for (const std::string& word : app.remaining(true)) {
    const bool option = word.starts_with("-");
    const std::string name = option ? word.substr(0, word.find('=')) : word;
    if (std::string line = Line(name, option ? Options(given) : Commands(*given.back())); !line.empty()) return line;
    if (!option) break;  // what stands behind a command that is not known may be anything
  }
  return {};
}

}  // namespace kiln::cli
