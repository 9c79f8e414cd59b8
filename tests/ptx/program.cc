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
constexpr uint64_t kShortTurn = 20'000;     // in a cluster
constexpr uint64_t kMost = 20'000'000'000;  // of a launch

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
      return emulator::Report{.findings = {}, .finished = RunBlocks(launch, args.cluster, options)};
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

  // Blocks that run together.
  struct Gang {
    Cluster cluster;
    std::vector<std::unique_ptr<Block>> blocks;

    bool Done() const {
      return std::ranges::all_of(blocks, [](const auto& block) { return block->Done(); });
    }
    // Until all are done, or for about so many instructions.
    uint64_t Run(uint64_t instructions) {
      uint64_t spent = 0;
      while (!Done() && spent <= instructions) {
        uint64_t round = 0;
        for (const auto& block : blocks)
          if (!block->Done()) round += block->Run(blocks.size() == 1 ? instructions : kShortTurn);
        if (round == 0) throw Failure("deadlock of a cluster");
        spent += round;
      }
      return spent;
    }
  };

  static std::unique_ptr<Gang> MakeGang(const Launch& launch, std::array<uint32_t, 3> cluster, std::array<uint32_t, 3> first) {
    auto gang = std::make_unique<Gang>();
    for (uint32_t z = 0; z < cluster[2]; ++z)
      for (uint32_t y = 0; y < cluster[1]; ++y)
        for (uint32_t x = 0; x < cluster[0]; ++x) {
          const std::array index{first[0] + x, first[1] + y, first[2] + z};
          const uint64_t number = index[0] + launch.grid[0] * (index[1] + uint64_t{launch.grid[1]} * index[2]);
          auto block = std::make_unique<Block>(launch, index, launch.seed * 65537 + number);
          block->cluster = &gang->cluster;
          block->rank = uint32_t(gang->blocks.size());
          gang->cluster.blocks.push_back(block.get());
          gang->blocks.push_back(std::move(block));
        }
    return gang;
  }

  static bool RunBlocks(const Launch& launch, const std::array<uint32_t, 3>& cluster, const emulator::Options& options) {
    const uint32_t x = launch.grid[0] / cluster[0], y = launch.grid[1] / cluster[1], z = launch.grid[2] / cluster[2];
    std::vector<uint32_t> order(size_t{x} * y * z);
    std::iota(order.begin(), order.end(), 0u);
    std::mt19937 random(uint32_t(launch.seed) + 1);
    std::ranges::shuffle(order, random);
    std::deque<std::unique_ptr<Gang>> under_way;
    uint64_t spent = 0;
    for (size_t next = 0; next < order.size() || !under_way.empty();) {
      if (std::chrono::steady_clock::now() > options.until) return false;
      if (next < order.size()) {
        const uint32_t i = order[next++];
        under_way.push_front(MakeGang(launch, cluster, {i % x * cluster[0], i / x % y * cluster[1], i / x / y * cluster[2]}));
      }
      std::unique_ptr<Gang> gang = std::move(under_way.front());
      under_way.pop_front();
      spent += gang->Run(kTurn);
      if (spent > kMost) throw Failure("it does not end");
      if (!gang->Done()) under_way.push_back(std::move(gang));
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
