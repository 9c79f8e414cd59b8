// SPDX-License-Identifier: Apache-2.0
//
// kiln-bench --bin DIR --programs DIR [--json] [--quick] [--halves | --split=WORKERS:KILND:CALLERS] [--minutes N] PART…
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "tests/bench/figures.h"

namespace kiln::bench {
namespace {

struct Part {
  std::string_view name;
  std::vector<Figure> (*measure)(const Setup& setup, const Peer& peer);
};

template <std::vector<Figure> (*measure)(const Setup&)>
std::vector<Figure> Alone(const Setup& setup, const Peer&) {
  return measure(setup);
}

constexpr Part kParts[] = {{"hit", MeasureHits},
                           {"miss", Alone<MeasureMisses>},
                           {"start", Alone<MeasureStart>},
                           {"tune", Alone<MeasureTuning>},
                           {"one-key", Alone<MeasureOneKey>},
                           {"ranks", Alone<MeasureRanks>},
                           {"manifest", Alone<MeasureManifest>},
                           {"crowd", MeasureCrowd},
                           {"overload", Alone<MeasureOverload>},
                           {"soak", Alone<MeasureSoak>}};

void Print(const Figure& f, bool json) {
  const std::string value = f.value ? fmt::format("{:.2f}", *f.value) : "none";
  if (json) {
    std::string note;
    for (const char c : f.note) note += c == '"' || c == '\\' ? std::string("\\") + c : c == '\n' ? " " : std::string(1, c);
    fmt::print(R"({{"name": "{}", "value": {}, "unit": "{}", "bar": {}, "bar_is": "{}", "holds": {}, "note": "{}"}})"
               "\n",
               f.name, f.value ? value : "null", f.unit, f.bar, f.at_most ? "at most" : "at least", f.holds(), note);
  } else {
    fmt::print("{:<48} {:>10} {:<4} {} {:<6} {:<15} {}\n", f.name, value, f.unit, f.at_most ? "≤" : "≥", f.bar, f.holds() ? "holds" : "DOES NOT HOLD",
               f.note);
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
      if (!setup.split) setup.split = Split::Halves();
    } else if (word.starts_with("--split=")) {
      setup.split = Split::Parse(word.substr(8));
      if (!setup.split) throw std::runtime_error(fmt::format("{} names no processors; an example: --split=0-3:4,5:6-15", word));
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
  const auto is_part = [](std::string_view word) { return std::ranges::find(kParts, word, &Part::name) != std::end(kParts); };
  if (setup.bin.empty() || parts.empty() || !std::ranges::all_of(parts, is_part)) {
    fmt::print(stderr,
               "usage: kiln-bench --bin DIR --programs DIR [--json] [--quick] [--halves | --split=WORKERS:KILND:CALLERS] "
               "[--minutes N] PART…\nparts:");
    for (const Part& part : kParts) fmt::print(stderr, " {}", part.name);
    fmt::print(stderr, "\n");
    return 2;
  }
  const ScratchFolder scratch;
  setup.scratch = scratch.path;
  const Peer peer(setup);  // forks, so first
  std::optional<OnProcessors> here;
  if (setup.split) here.emplace(setup.split->callers);
  bool all_hold = true;
  for (const Part& part : kParts) {
    if (std::ranges::find(parts, part.name) == parts.end()) continue;
    for (Figure& figure : part.measure(setup, peer)) {
      if (setup.split) figure.note += (figure.note.empty() ? "" : "; ") + setup.split->Text();
      Print(figure, json);
      all_hold &= figure.holds();
    }
  }
  return all_hold ? 0 : 1;
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
