// SPDX-License-Identifier: Apache-2.0
//
// Golden files: what a step makes of NAME.kiln is compared with NAME.expected beside it. KILN_BLESS=1 in the
// environment writes the expected files anew; the diff is then the review. Paths are relative to the root of the tree,
// where ctest runs the tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace kiln::golden {

inline std::string ReadFile(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The .kiln files of a folder under tests/golden, sorted: a folder's order is the file system's.
inline std::vector<std::filesystem::path> Inputs(const std::string& folder) {
  std::vector<std::filesystem::path> inputs;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/" + folder)) {
    if (entry.path().extension() == ".kiln") inputs.push_back(entry.path());
  }
  std::sort(inputs.begin(), inputs.end());
  EXPECT_FALSE(inputs.empty()) << "no .kiln files in tests/golden/" << folder;
  return inputs;
}

inline void Expect(std::filesystem::path input, const std::string& actual) {
  std::filesystem::path expected = input.replace_extension(".expected");
  if (std::getenv("KILN_BLESS") != nullptr) std::ofstream(expected, std::ios::binary) << actual;
  EXPECT_EQ(ReadFile(expected), actual) << expected << " differs; if the new text is right, run the test with KILN_BLESS=1";
}

}  // namespace kiln::golden
