// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/suggestion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kiln::cli {
namespace {

// What is said of `kiln WORDS…`, which is not understood.
std::string Said(std::vector<std::string> words) {
  CLI::App app("", "kiln");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--timeout");
  CLI::App& compile = *app.add_subcommand("compile");
  compile.add_option("file");
  compile.add_option("-t,--target");
  CLI::App& cache = *app.add_subcommand("cache");
  cache.require_subcommand(1);
  cache.add_subcommand("export");
  std::ranges::reverse(words);  // as CLI11 takes a vector
  EXPECT_THROW(app.parse(words), CLI::ParseError);
  return DidYouMean(app);
}

TEST(DidYouMean, NamesTheCommand) {
  EXPECT_EQ(Said({"compil", "program.kiln"}), "compil is not known: did you mean compile?\n");
  EXPECT_EQ(Said({"cache", "exprot"}), "exprot is not known: did you mean export?\n");
}

TEST(DidYouMean, NamesTheOptionOfTheCommandOrOfThoseAroundIt) {
  EXPECT_EQ(Said({"compile", "file", "--traget=cuda:sm_80"}), "--traget is not known: did you mean --target?\n");
  EXPECT_EQ(Said({"compile", "file", "--timout", "3"}), "--timout is not known: did you mean --timeout?\n");
}

TEST(DidYouMean, SaysNothingOfWhatIsNearNothing) {
  EXPECT_EQ(Said({"bake", "program.kiln"}), "");
  EXPECT_EQ(Said({"compile", "file", "--colour"}), "");
  EXPECT_EQ(Said({"compile", "--target"}), "") << "known, without its value";
  EXPECT_EQ(Said({}), "");
}

}  // namespace
}  // namespace kiln::cli
