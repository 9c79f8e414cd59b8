// SPDX-License-Identifier: Apache-2.0
#include "compiler/target/target.h"

#include <algorithm>
#include <vector>

#include "compiler/target/closest.h"

namespace kiln::target {
namespace {

constexpr Target MakeTarget(std::string_view name, Family family, std::string_view arch, std::string_view llvm_features, uint32_t warp,
                            uint32_t threads, uint32_t shared, uint32_t registers_per_thread, uint32_t multiprocessors,
                            uint32_t registers_per_multiprocessor, const Costs& costs, Feature features) {
  return {name,  family,  arch, llvm_features, warp, threads, shared, registers_per_thread, multiprocessors, registers_per_multiprocessor,
          costs, features};
}

constexpr Target MakeEmulated(std::string_view name, Target target) {
  target.name = name;
  target.emulated = true;
  return target;
}

using enum Feature;
constexpr Target kTargets[] = {
#define KILN_TARGET(name, family, ...) MakeTarget(name, Family::family, __VA_ARGS__),
#include "compiler/target/targets.def"
};

constexpr Target kEmulated[] = {
#define KILN_TARGET(name, family, arch, ...) MakeEmulated("emu:" arch, MakeTarget(name, Family::family, arch, __VA_ARGS__)),
#include "compiler/target/targets.def"
};

std::string_view Trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

// "cuda -arch=sm_90a" and "hip -mcpu=gfx942" as "cuda:sm_90a" and "hip:gfx942"; others as they are.
std::string Canonical(std::string_view name) {
  name = Trim(name);
  const size_t space = name.find(' ');
  if (space == std::string_view::npos) return std::string(name);
  const std::string_view option = Trim(name.substr(space));
  for (std::string_view flag : {"-arch=", "-mcpu="}) {
    if (option.starts_with(flag) && option.find(' ') == std::string_view::npos) {
      return std::string(name.substr(0, space)) + ":" + std::string(option.substr(flag.size()));
    }
  }
  return std::string(name);
}

std::string Unknown(std::string_view name) {
  constexpr size_t kLongest = 64;
  const std::string canonical = Canonical(name.substr(0, kLongest));
  std::vector<std::string_view> names;
  for (const Target& target : kTargets) names.push_back(target.name);
  std::string text = "unknown target \"" + std::string(name.substr(0, kLongest)) + "\"";
  if (const auto nearest = Closest(canonical, names, 4)) text += "; did you mean \"" + std::string(*nearest) + "\"?";
  text += " Targets:";
  for (const Target& target : kTargets) text += " " + std::string(target.name);
  return text + "; and each as \"emu:…\" for the emulator";
}

}  // namespace

std::span<const Target> All() { return kTargets; }

std::span<const Target> Emulated() { return kEmulated; }

std::expected<const Target*, std::string> Find(std::string_view name) {
  const std::string canonical = Canonical(name);
  for (std::span<const Target> rows : {All(), Emulated()}) {
    const auto found = std::ranges::find(rows, std::string_view(canonical), &Target::name);
    if (found != rows.end()) return &*found;
  }
  return std::unexpected(Unknown(name));
}

}  // namespace kiln::target
