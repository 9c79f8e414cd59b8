// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/program.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>

#include "tests/ptx/machine.h"
#include "tests/ptx/text.h"

namespace kiln::ptx {
namespace {

// Of a block, before others have their turn: it may wait for what they write.
constexpr uint64_t kTurn = 4'000'000;

class Interpreted final : public emulator::Program {
 public:
  explicit Interpreted(Module module) : module_(std::move(module)) {
    for (size_t g = 0; g < module_.globals.size(); ++g) *module_.globals[g] = module_.initial[g];
  }

  std::expected<emulator::Report, std::string> Run(const emulator::LaunchArgs& args, std::span<const emulator::Memory> memory,
                                                   const emulator::Options& options) override {
    const auto entry = module_.functions.find(args.entry);
    if (entry == module_.functions.end() || !entry->second->entry) return std::unexpected("PTX: no entry " + args.entry);
    Launch launch{.module = &module_,
                  .entry = entry->second.get(),
                  .grid = args.grid,
                  .threads = args.threads,
                  .shared_bytes = args.shared_bytes,
                  .seed = options.seed};
    if (args.args.size() != launch.entry->params.size()) return std::unexpected("PTX: another number of arguments");
    launch.params.resize(launch.entry->frame_bytes);
    for (size_t p = 0; p < args.args.size(); ++p) Set(launch, p, args.args[p]);
    for (const emulator::Memory& part : memory) Add(launch, part.data, part.bytes, part.name);
    for (const auto& global : module_.globals) Add(launch, global->data(), global->size(), "a variable");
    std::ranges::sort(launch.memory, {}, &Range::begin);
    try {
      return emulator::Report{.findings = {}, .finished = RunBlocks(launch, options)};
    } catch (const std::exception& problem) {
      return std::unexpected(std::string(problem.what()) + " (" + args.entry + ")");
    }
  }

 private:
  // A tensor map is a parameter as a whole; its address is given.
  static void Set(Launch& launch, size_t index, uint64_t value) {
    const Parameter& param = launch.entry->params[index];
    const void* from = param.bytes > 8 ? reinterpret_cast<const void*>(value) : &value;
    std::memcpy(launch.params.data() + param.offset, from, param.bytes);
  }
  static void Add(Launch& launch, const void* data, uint64_t bytes, const std::string& name) {
    const auto begin = reinterpret_cast<uint64_t>(data);
    if (bytes != 0) launch.memory.push_back({begin, begin + bytes, name});
  }

  static bool RunBlocks(const Launch& launch, const emulator::Options& options) {
    const auto [x, y, z] = launch.grid;
    std::vector<uint32_t> order(size_t{x} * y * z);
    std::iota(order.begin(), order.end(), 0u);
    std::mt19937 random(uint32_t(launch.seed) + 1);
    std::ranges::shuffle(order, random);
    std::deque<std::unique_ptr<Block>> under_way;
    for (size_t next = 0; next < order.size() || !under_way.empty();) {
      if (std::chrono::steady_clock::now() > options.until) return false;
      if (next < order.size()) {
        const uint32_t i = order[next++];
        under_way.push_front(std::make_unique<Block>(launch, std::array{i % x, i / x % y, i / x / y}, launch.seed * 65537 + i));
      }
      std::unique_ptr<Block> block = std::move(under_way.front());
      under_way.pop_front();
      if (!block->Run(kTurn)) under_way.push_back(std::move(block));
    }
    return true;
  }

  Module module_;
};

}  // namespace

std::expected<std::unique_ptr<emulator::Program>, std::string> Load(const std::string& ptx) {
  try {
    return std::make_unique<Interpreted>(Parse(ptx));
  } catch (const std::exception& problem) {
    return std::unexpected(problem.what());
  }
}

}  // namespace kiln::ptx
