// SPDX-License-Identifier: Apache-2.0
//
// Concurrency: Run's threads share the launch (Grid, read-only), the recorder, the turns and the global shadow, which lock. Each has its
// own stacks, shared memory and shadow of it. They are joined before Run returns, and so is the one that waits for the launch's time to be
// over and sets the flag that loops poll.
#include "compiler/emulator/program.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <condition_variable>
#include <map>
#include <mutex>
#include <ranges>
#include <thread>
#include <vector>

#include "compiler/emulator/instrument.h"
#include "compiler/emulator/runtime/check/owners.h"
#include "compiler/emulator/runtime/check/shadow.h"
#include "compiler/emulator/runtime/check/tenants.h"
#include "compiler/emulator/runtime/entry.h"
#include "compiler/emulator/runtime/gang.h"
#include "compiler/emulator/runtime/matrix/number.h"
#include "compiler/emulator/tensor_map.h"
#include "compiler/llvm/backend_options.h"
#include "compiler/target/target.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/Support/TargetSelect.h>
#pragma GCC diagnostic pop

namespace kiln::emulator {
namespace {

using Kernel = void (*)(const uint64_t*);

constexpr uint64_t kMostThreads = 1 << 16;   // of a grid whose blocks run at once
constexpr uint64_t kFewThreads = 1 << 13;    // of one whose blocks may, where flags of earlier ones are all they wait for
constexpr size_t kLongBlock = 2048;          // instructions; LLVM's instruction selection takes time quadratic in them
constexpr uint64_t kSpillBytes = 16;         // of the stack for a value, where LLVM does not optimize
constexpr uint64_t kMostClusterBlocks = 16;  // CUDA C++ Programming Guide: 8, and 16 where a launch asks for it

// Conversions that processors without f16 and bf16 leave to a library. A half travels in the low bits of a float register.
float AsHalfRegister(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits)); }
float TruncateToF16(float x) { return AsHalfRegister(Narrow(ir::DType::kF16, x)); }
float TruncateToBf16(float x) { return AsHalfRegister(Narrow(ir::DType::kBF16, x)); }
float ExtendF16(float x) { return ValuesOf(ir::DType::kF16)[std::bit_cast<uint32_t>(x) & 0xffff]; }

// To odd, so that the second rounding sees whether something was lost.
float RoundToOdd(double x) {
  const float nearest = float(x);
  if (double(nearest) == x || x != x) return nearest;
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const bool above = (double(nearest) > x) == (x > 0);
  return std::bit_cast<float>((above ? bits - 1 : bits) | 1);
}
float TruncateDoubleToF16(double x) { return TruncateToF16(RoundToOdd(x)); }
float TruncateDoubleToBf16(double x) { return TruncateToBf16(RoundToOdd(x)); }

// Memory of a block, between addresses that belong to nobody: what an unchecked kernel does beyond its tiles ends the process instead of
// changing what others rely on.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage + 2 * kGuard) {
    void* memory = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return;
    base_ = static_cast<std::byte*>(memory);
    if (bytes_ > 2 * kGuard && mprotect(base_ + kGuard, bytes_ - 2 * kGuard, PROT_READ | PROT_WRITE) != 0) Release();
  }
  ~SharedMemory() { Release(); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  std::byte* data() const { return base_ == nullptr ? nullptr : base_ + kGuard; }

 private:
  static constexpr size_t kPage = 4096, kGuard = size_t{64} << 20;
  void Release() {
    if (base_ != nullptr) munmap(base_, bytes_);
    base_ = nullptr;
  }
  std::byte* base_ = nullptr;
  size_t bytes_;
};

// Sets a flag at a moment, if that comes while this lives; min: at once.
class Alarm {
 public:
  using Moment = std::chrono::steady_clock::time_point;
  Alarm(std::atomic<bool>& flag, Moment at) {
    flag = at == Moment::min();
    if (flag || at == Moment::max()) return;
    waiter_ = std::jthread([&flag, at](const std::stop_token& stop) {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any changed;
      changed.wait_until(lock, stop, at, [] { return false; });
      if (!stop.stop_requested()) flag = true;
    });
  }

 private:
  std::jthread waiter_;
};

// run(args): loads each parameter from its 8 bytes and calls the kernel.
void AddEntry(llvm::Function& kernel) {
  llvm::IRBuilder<> b(kernel.getContext());
  auto* type = llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy()}, false);
  auto* entry = llvm::Function::Create(type, llvm::Function::ExternalLinkage, kernel.getName() + ".run", *kernel.getParent());
  b.SetInsertPoint(llvm::BasicBlock::Create(kernel.getContext(), "entry", entry));
  std::vector<llvm::Value*> args;
  for (llvm::Argument& parameter : kernel.args()) {
    llvm::Type* type = parameter.getType();
    llvm::Value* place = b.CreateConstGEP1_64(b.getInt64Ty(), entry->getArg(0), parameter.getArgNo());
    if (type->isIntegerTy(1)) {
      args.push_back(b.CreateTrunc(b.CreateLoad(b.getInt8Ty(), place), type));
    } else {
      args.push_back(b.CreateLoad(type, place));
    }
  }
  b.CreateCall(&kernel, args);
  b.CreateRetVoid();
}

// Cuts long blocks; whether there were any. Only a backend that does not optimize leaves them cut.
bool CutBlocks(llvm::Function& function) {
  std::vector<llvm::BasicBlock::iterator> cuts;
  for (llvm::BasicBlock& block : function) {
    const auto first = block.getFirstNonPHIOrDbgOrAlloca();
    size_t count = 0;
    for (auto at = first; at != block.end(); ++at)
      if (++count % kLongBlock == 0) cuts.push_back(at);
  }
  for (const auto& at : std::views::reverse(cuts)) at->getParent()->splitBasicBlock(at);  // from the end: a cut moves what is behind it
  return !cuts.empty();
}

// Arrays of a thread that are indexed at run time.
uint64_t OwnBytes(const llvm::Function& kernel) {
  uint64_t bytes = 0;
  for (const llvm::Instruction& instruction : llvm::instructions(kernel)) {
    if (auto* array = llvm::dyn_cast<llvm::AllocaInst>(&instruction)) {
      bytes += array->getAllocationSize(kernel.getParent()->getDataLayout()).value_or(llvm::TypeSize::getFixed(0)).getFixedValue() +
               array->getAlign().value();
    }
  }
  return bytes;
}

class JitProgram final : public Program {
 public:
  static std::expected<std::unique_ptr<Program>, std::string> Create(const v1::Artifact& artifact, const target::Target& target, bool check) {
    auto program = std::make_unique<JitProgram>(target, check);
    if (llvm::Error problem = program->Compile(artifact)) return std::unexpected(llvm::toString(std::move(problem)));
    return program;
  }

  JitProgram(const target::Target& target, bool check) : target_(target), check_(check) {}

  std::expected<Report, std::string> Run(const LaunchArgs& launch, std::span<const Memory> memory, const Options& options) override {
    const auto kernel = kernels_.find(launch.entry);
    if (kernel == kernels_.end()) return std::unexpected("the artifact has no kernel \"" + launch.entry + "\"");
    if (std::string problem = CheckLaunch(launch); !problem.empty()) return std::unexpected(problem);
    if (std::ranges::count(launch.grid, 0u) > 0) return Report{.findings = {}, .finished = true};
    const std::unique_ptr<GlobalShadow> shadow = check_ ? std::make_unique<GlobalShadow>(memory, launch.threads) : nullptr;
    Grid grid{.kernel = kernel->second,
              .args = launch.args.data(),
              .size = launch.grid,
              .threads = launch.threads,
              .warp_size = target_.warp_size,
              .shared_bytes = launch.shared_bytes,
              .own_bytes = own_bytes_.at(launch.entry),
              .cluster = launch.cluster,
              .seed = options.seed,
              .slots = slots_,
              .touched = touched_,
              .shadow = shadow.get(),
              .clocks = check_ && (clocks_ || launch.cluster != std::array<uint32_t, 3>{1, 1, 1}),
              .waits_for_all = waits_for_all_,
              .orders_atomics = mixes_atomics_.at(launch.entry),
              .time_over = &time_over_};
    if (takes_flags_ && !waits_for_all_) {
      (grid.blocks() * grid.threads <= kFewThreads ? grid.waits_for_all : grid.follows) = true;
    }
    const Alarm alarm(time_over_, options.until);
    if (grid.follows) return RunBlocks(grid, 1);
    return check_ || options.threads <= 1 || grid.gangs() == 1 ? RunChecked(grid, options.threads) : RunOwned(grid, launch, memory, options.threads);
  }

 private:
  static std::expected<Report, std::string> RunChecked(Grid& grid, uint32_t threads) {
    auto report = RunBlocks(grid, threads);
    if (report && threads > 1 && grid.shadow != nullptr && grid.shadow->crossed() && !EndedByTime(grid, *report)) {
      grid.shadow->Restore();
      report = RunBlocks(grid, 1);
    }
    return report;
  }

  std::expected<Report, std::string> RunOwned(Grid& grid, const LaunchArgs& launch, std::span<const Memory> memory, uint32_t threads) const {
    const Written& written = written_.at(launch.entry);
    std::vector<uint64_t> addresses;
    for (const unsigned param : written.params) addresses.push_back(launch.args.at(param));
    for (const unsigned param : written.maps) {
      const auto* map = reinterpret_cast<const TensorMap*>(launch.args.at(param));
      if (uint64_t(map) % 64 == 0 && map->magic == TensorMap::kMagic) addresses.push_back(map->address);
    }
    Owners owners(memory, addresses, written.any);
    if (!owners.ok()) return RunBlocks(grid, 1);
    grid.owners = &owners;
    auto report = RunBlocks(grid, threads);
    if (!owners.crossed() || (report && EndedByTime(grid, *report))) return report;
    owners.Restore();
    grid.owners = nullptr;
    return RunBlocks(grid, 1);
  }

  static bool EndedByTime(const Grid& grid, const Report& report) { return *grid.time_over && !report.finished; }

  // Empty, or what the target does not have.
  std::string CheckLaunch(const LaunchArgs& launch) const {
    if (launch.threads == 0 || launch.threads > target_.max_threads) {
      return std::to_string(launch.threads) + " threads in a block; " + std::string(target_.name) + " has at most " +
             std::to_string(target_.max_threads);
    }
    if (launch.shared_bytes > target_.max_shared_bytes) {
      return std::to_string(launch.shared_bytes) + " bytes of shared memory; a block of " + std::string(target_.name) + " has at most " +
             std::to_string(target_.max_shared_bytes);
    }
    for (size_t axis = 0; axis < 3; ++axis) {
      if (launch.cluster[axis] == 0 || launch.grid[axis] % launch.cluster[axis] != 0) {
        return "a grid of " + std::to_string(launch.grid[axis]) + " blocks along axis " + std::to_string(axis) +
               " does not divide into clusters of " + std::to_string(launch.cluster[axis]);
      }
    }
    const uint64_t cluster_blocks = uint64_t(launch.cluster[0]) * launch.cluster[1] * launch.cluster[2];
    if (cluster_blocks > kMostClusterBlocks || (cluster_blocks > 1 && !target_.Has(target::Feature::kCluster))) {
      return "clusters of " + std::to_string(cluster_blocks) + " blocks; " + std::string(target_.name) + " has at most " +
             std::to_string(target_.Has(target::Feature::kCluster) ? kMostClusterBlocks : 1);
    }
    const uint64_t threads = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2] * launch.threads;
    if (waits_for_all_ && threads > kMostThreads) {
      return "a grid of " + std::to_string(threads) + " threads whose blocks wait for each other; they must run at once, and at most " +
             std::to_string(kMostThreads) + " do";
    }
    return {};
  }

  // What one thread of the host runs gangs with.
  struct Worker {
    explicit Worker(const Grid& grid) : stacks(size_t{grid.threads} * grid.gang_blocks(), grid.own_bytes) {
      for (uint32_t i = 0; i < grid.gang_blocks(); ++i) {
        memory.push_back(std::make_unique<SharedMemory>(grid.shared_bytes));
        if (grid.shadow != nullptr) shadows.push_back(std::make_unique<SharedShadow>(grid.shared_bytes, grid.threads, grid.slots));
        blocks.push_back({memory.back()->data(), grid.shadow == nullptr ? nullptr : shadows.back().get()});
      }
    }
    bool ok() const {
      return stacks.ok() && std::ranges::all_of(blocks, [](const BlockMemory& m) { return m.shared != nullptr; });
    }
    Stacks stacks;
    std::vector<std::unique_ptr<SharedMemory>> memory;
    std::vector<std::unique_ptr<SharedShadow>> shadows;
    std::vector<BlockMemory> blocks;
  };

  static std::expected<Report, std::string> RunBlocks(Grid& grid, uint32_t most_threads) {
    Recorder recorder;
    Turns turns(grid.follows ? 0 : grid.seed, grid.gangs());
    grid.recorder = &recorder;
    grid.turns = &turns;
    const uint64_t count = std::min<uint64_t>(std::max(most_threads, 1u), grid.gangs());
    std::atomic<bool> memory = true;
    const auto work = [&] {
      Worker worker(grid);
      if (worker.ok()) {
        RunGangs(grid, worker, count > 1);
      } else {
        memory = false;
      }
    };
    std::vector<std::thread> threads;
    for (uint64_t i = 1; i < count; ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    if (!memory) return std::unexpected("no memory for the threads' stacks");
    return Report{recorder.Take(), !recorder.stopped() && !recorder.cut_short()};
  }

  // Until all have run, one gave up, time is over, or what they do to each other depends on the order, which in parallel is any.
  static void RunGangs(const Grid& grid, Worker& worker, bool in_parallel) {
    Gang gang(grid, worker.stacks, worker.blocks);
    const auto crossed = [&] { return (grid.shadow != nullptr && grid.shadow->crossed()) || (grid.owners != nullptr && grid.owners->crossed()); };
    while (!in_parallel || !crossed()) {
      const auto turn = grid.turns->Start();
      if (!turn) return;
      const bool gave_up = grid.recorder->Counts(turn->number) && !gang.Run(*turn);
      grid.turns->End(turn->number);
      if (gave_up && *grid.time_over) return;
    }
  }

  // Of "b7".
  static uint32_t BufferNumber(std::string_view name) {
    uint32_t number = ~0u;
    if (name.starts_with('b')) std::from_chars(name.data() + 1, name.data() + name.size(), number);
    return number;
  }

  // Do threads of this code meet in other ways than at barriers of their block?
  static bool NeedsClocks(const llvm::Module& module) {
    constexpr const char* kNames[] = {"wgmma_begin",   "fence_async_proxy", "phase_init",   "tensor_store", "named_barrier", "named_arrive",
                                      "lanes_barrier", "cluster_barrier",   "grid_barrier", "take_flag",    "meet_global",   "meet_shared"};
    return std::ranges::any_of(kNames, [&](const char* name) { return module.getFunction(std::string("kiln_emu_") + name) != nullptr; });
  }

  // They matter to checks alone.
  static void DropChecks(llvm::Module& module) {
    for (const char* name : {"allocate", "claim_begin", "claim_shared", "claim_global", "claim_end"}) {
      llvm::Function* function = module.getFunction(std::string("kiln_emu_") + name);
      while (function != nullptr && !function->use_empty()) {
        auto* call = llvm::cast<llvm::Instruction>(function->user_back());
        if (!call->getType()->isVoidTy()) call->replaceAllUsesWith(llvm::Constant::getNullValue(call->getType()));
        call->eraseFromParent();
      }
    }
  }

  llvm::Error Compile(const v1::Artifact& artifact) {
    auto context = std::make_unique<llvm::LLVMContext>();
    auto parsed = llvm::parseBitcodeFile(llvm::MemoryBufferRef(artifact.code(), "kernel"), *context);
    if (!parsed) return parsed.takeError();
    if (!check_) DropChecks(**parsed);
    clocks_ = NeedsClocks(**parsed);
    waits_for_all_ = (*parsed)->getFunction("kiln_emu_grid_barrier") != nullptr;
    takes_flags_ = (*parsed)->getFunction("kiln_emu_take_flag") != nullptr || (*parsed)->getFunction("kiln_emu_meet_global") != nullptr;
    std::vector<std::string> names;
    for (llvm::Function& function : **parsed) {
      if (!function.isDeclaration()) names.push_back(function.getName().str());
    }
    bool cut = false;
    for (const std::string& name : names) {
      llvm::Function& function = *(*parsed)->getFunction(name);
      if (check_) Instrument(function);
      else written_[name] = HookOwners(function);
      mixes_atomics_[name] = MixesAtomics(function);
      OrderZeros(function);
      HideSigns(function);
      PollInLoops(function, time_over_);
      AddEntry(function);
      own_bytes_[name] = OwnBytes(function);
      cut |= CutBlocks(function);
    }
    for (const std::string& name : names)
      if (cut) own_bytes_[name] += kSpillBytes * (*parsed)->getFunction(name)->getInstructionCount();
    if (llvm::Error problem = MakeJit(cut)) return problem;
    (*parsed)->setDataLayout(jit_->getDataLayout());
    if (llvm::Error problem = jit_->addIRModule({std::move(*parsed), std::move(context)})) return problem;
    for (const std::string& name : names) {
      auto address = jit_->lookup(name + ".run");
      if (!address) return address.takeError();
      kernels_[name] = address->toPtr<void(const uint64_t*)>();
    }
    for (const v1::SharedSlot& slot : artifact.report().shared_memory()) {
      slots_.push_back({"%" + slot.buffer(),
                        BufferNumber(slot.buffer()),
                        slot.offset(),
                        slot.bytes(),
                        std::max(slot.element_bits() / 8, 1u),
                        std::max(slot.versions(), 1u),
                        ir::Layout::Parse(slot.layout()).value_or(ir::Layout()),
                        {slot.shape().begin(), slot.shape().end()},
                        {slot.statements().begin(), slot.statements().end()}});
    }
    FindTouched(artifact.report());
    return llvm::Error::success();
  }

  // Accesses of statements that have no number are ascribed to any.
  void FindTouched(const v1::Report& report) {
    uint32_t most = 0;
    for (const v1::SharedSlot& slot : report.shared_memory())
      for (const uint32_t statement : slot.statements()) most = std::max(most, statement);
    if (most == 0) return;
    touched_.resize(most + 1);
    for (const v1::SharedSlot& slot : report.shared_memory())
      for (const uint32_t statement : slot.statements()) touched_[statement].push_back({slot.offset(), slot.offset() + slot.bytes()});
    for (size_t statement = 1; statement < touched_.size(); ++statement) {
      if (!touched_[statement].empty()) touched_[statement].insert(touched_[statement].end(), touched_[0].begin(), touched_[0].end());
    }
  }

  llvm::Error MakeJit(bool cut) {
    llvm_ir::SetBackendOptions();
    auto machine = llvm::orc::JITTargetMachineBuilder::detectHost();
    if (!machine) return machine.takeError();
    machine->addFeatures({"-avx512bf16", "-avxneconvert"});  // their conversion takes subnormals for zero
    machine->getOptions().AllowFPOpFusion = llvm::FPOpFusion::Fast;
    machine->setCodeGenOptLevel(cut ? llvm::CodeGenOptLevel::None : check_ ? llvm::CodeGenOptLevel::Less : llvm::CodeGenOptLevel::Default);
    auto jit = llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(std::move(*machine)).create();
    if (!jit) return jit.takeError();
    jit_ = std::move(*jit);
    llvm::orc::SymbolMap symbols;
    const auto define = [&](const char* name, void* address) {
      symbols[jit_->mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(address), llvm::JITSymbolFlags::Exported};
    };
    for (const EntryPoint& entry : EntryPoints()) define(entry.name, entry.address);
    define("__truncsfhf2", reinterpret_cast<void*>(&TruncateToF16));
    define("__truncsfbf2", reinterpret_cast<void*>(&TruncateToBf16));
    define("__truncdfhf2", reinterpret_cast<void*>(&TruncateDoubleToF16));
    define("__truncdfbf2", reinterpret_cast<void*>(&TruncateDoubleToBf16));
    define("__extendhfsf2", reinterpret_cast<void*>(&ExtendF16));
    return jit_->getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols)));
  }

  const target::Target& target_;
  const bool check_;
  bool clocks_ = false;
  bool waits_for_all_ = false;  // blocks of a grid
  bool takes_flags_ = false;    // of other blocks
  std::atomic<bool> time_over_ = false;
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  std::map<std::string, Kernel> kernels_;
  std::map<std::string, uint64_t> own_bytes_;  // of each thread
  std::map<std::string, Written> written_;     // of kernels that are not checked
  std::map<std::string, bool> mixes_atomics_;
  std::vector<SharedSlot> slots_;
  std::vector<std::vector<SharedRange>> touched_;  // by statement
};

}  // namespace

std::string_view Name(FindingKind kind) {
  switch (kind) {
    case FindingKind::kRace: return "race";
    case FindingKind::kAsyncPending: return "not waited for";
    case FindingKind::kUninitialized: return "uninitialised read";
    case FindingKind::kOutOfBounds: return "out of bounds";
    case FindingKind::kMisaligned: return "misaligned";
    case FindingKind::kDivergence: return "divergence";
    case FindingKind::kDeadlock: return "deadlock";
    case FindingKind::kNotUniform: return "not uniform";
    case FindingKind::kOperands: return "operands";
    case FindingKind::kUnfenced: return "no proxy fence";
    case FindingKind::kMbarrier: return "mbarrier";
    case FindingKind::kInFlight: return "registers in flight";
    case FindingKind::kUnwritten: return "unwritten element";
    case FindingKind::kTimeout: return "timeout";
  }
  return "";
}

std::expected<std::unique_ptr<Program>, std::string> Program::Load(const v1::Artifact& artifact, bool check) {
  const auto target = target::Find(artifact.target());
  if (!target) return std::unexpected(target.error());
  if (!(*target)->emulated || artifact.kind() != v1::EMULATOR) {
    return std::unexpected("this artifact is for " + artifact.target() +
                           "; the emulator runs those that were compiled for emu:" + std::string((*target)->arch));
  }
  static const bool initialised = !llvm::InitializeNativeTarget() && !llvm::InitializeNativeTargetAsmPrinter();
  if (!initialised) return std::unexpected("this LLVM has no code generator for this host");
  return JitProgram::Create(artifact, **target, check);
}

}  // namespace kiln::emulator
