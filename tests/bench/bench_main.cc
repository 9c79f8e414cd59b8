// SPDX-License-Identifier: Apache-2.0
//
// kiln-bench --bin DIR --programs DIR [--json] [--quick] [--halves] [--minutes N] [hit|miss|start|flights|crowd|overload|soak …]
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "tests/bench/figures.h"

namespace kiln::bench {
namespace {

void Print(const Figure& f, bool json) {
  const std::string value = f.value ? fmt::format("{:.2f}", *f.value) : "none";
  if (json) {
    std::string note;
    for (const char c : f.note) note += c == '"' || c == '\\' ? std::string("\\") + c : c == '\n' ? " " : std::string(1, c);
    fmt::print(R"({{"name": "{}", "value": {}, "unit": "{}", "bar": {}, "bar_is": "{}", "holds": {}, "note": "{}"}})"
               "\n",
               f.name, f.value ? value : "null", f.unit, f.bar, f.at_most ? "at most" : "at least", f.holds(), note);
  } else {
    fmt::print("{:<48} {:>10} {:<4} {} {:<6} {:<15} {}\n", f.name, value, f.unit, f.at_most ? "≤" : "≥", f.bar,
               f.holds() ? "holds" : "DOES NOT HOLD", f.note);
  }
  std::fflush(stdout);
}

struct ScratchFolder {
  std::filesystem::path path;
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kiln-bench-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a folder in " + pattern);
    path = pattern;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path); }
};

int Main(int argc, char** argv) {
  Setup setup;
  bool json = false;
  std::vector<std::string_view> parts;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json") {
      json = true;
    } else if (word == "--quick") {
      setup.quick = true;
    } else if (word == "--halves") {
      setup.halves = Halves::OfThisProcess();
    } else if (word == "--minutes" && i + 1 < argc) {
      setup.minutes = std::strtod(argv[++i], nullptr);
    } else if (word == "--bin" && i + 1 < argc) {
      setup.bin = argv[++i];
    } else if (word == "--programs" && i + 1 < argc) {
      setup.programs = argv[++i];
    } else {
      parts.push_back(word);
    }
  }
  if (setup.bin.empty() || parts.empty()) {
    fmt::print(stderr, "usage: kiln-bench --bin DIR --programs DIR [--json] [--quick] [--halves] [--minutes N] PART…\n"
                       "parts: hit, miss, start, flights, crowd, overload, soak\n");
    return 2;
  }
  const ScratchFolder scratch;
  setup.scratch = scratch.path;
  const Peer peer(setup);  // forks, so first
  std::optional<OnProcessors> here;
  if (setup.halves) here.emplace(setup.halves->callers);
  const auto wanted = [&](std::string_view part) { return std::ranges::find(parts, part) != parts.end(); };
  const auto print_all = [&](std::vector<Figure> figures) {
    for (Figure& figure : figures) {
      if (setup.halves) figure.note += (figure.note.empty() ? "" : "; ") + setup.halves->Text();
      Print(figure, json);
    }
  };
  if (wanted("hit")) print_all(MeasureHits(setup, peer));
  if (wanted("miss")) print_all(MeasureMisses(setup));
  if (wanted("start")) print_all(MeasureStart(setup));
  if (wanted("flights")) print_all(MeasureFlights(setup));
  if (wanted("crowd")) print_all(MeasureCrowd(setup, peer));
  if (wanted("overload")) print_all(MeasureOverload(setup));
  if (wanted("soak")) print_all(MeasureSoak(setup));
  return 0;
}

}  // namespace
}  // namespace kiln::bench

int main(int argc, char** argv) {
  try {
    return kiln::bench::Main(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "kiln-bench: {}\n", error.what());
    return 1;
  }
}
