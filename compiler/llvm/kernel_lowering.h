// SPDX-License-Identifier: Apache-2.0
//
// One kernel on its way to LLVM IR. The parts of the class are spread over files by what they lower: kernels (lower.cc), statements
// and control flow (statement.cc), expressions (expression.cc), memory (memory.cc), parallel loops (element_loop.cc, element_address.cc, pairs.cc) and ops/.
//
// Registers of a fragment live in an array on the stack that is indexed by constants only, so that LLVM's SROA turns every
// element into an SSA value.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "compiler/analysis/facts.h"
#include "compiler/analysis/producer_slice.h"
#include "compiler/analysis/threads/divergence.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/llvm/counting_builder.h"
#include "compiler/llvm/device.h"
#include "compiler/options.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "compiler/rules/tensor.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::llvm_ir {

using Value = llvm::Value;
using Values = std::vector<llvm::Value*>;

// A byte offset, split into a value and the sum of all constants.
struct SplitOffset {
  Value* variable = nullptr;  // nullptr: zero
  int64_t constant = 0;
};

inline constexpr int kRoleBarrier = 1;  // barrier of the threads that compute; 0 is the whole block's, those of warp groups follow
using compiler::kGroupThreads;

// Where one access of a parallel loop goes, prepared before the loop's registers are walked.
struct ElementAddress {
  ir::BufferId buffer{};
  std::vector<int64_t> registers;  // fragments: register of the loop → register of the fragment
  // Memory whose offset is linear in digits of the loop's variables: offset = base + Σ step · (digits of the register part), in bytes.
  struct Step {
    compiler::LoopDigits digits;
    int64_t bytes = 0;
    Value* value = nullptr;  // added to bytes, where a stride is not constant
    int blocked = -1;        // dimension of a shared buffer that these digits index by blocks instead of by a constant step
  };
  std::optional<compiler::SplitAccess> split;  // absent: each register has an address of its own
  SplitOffset base;
  Value* after = nullptr;    // shared: added after the swizzle
  Value* pointer = nullptr;  // global: the buffer plus base.variable
  std::vector<Step> steps;
  // Dimensions that may be outside of a global buffer: index = value + Σ coefficient · (digits of the register part).
  struct Check {
    Value* index;
    std::vector<std::pair<compiler::LoopDigits, int64_t>> coefficients;
    Value* limit;
  };
  std::vector<Check> checks;
  std::vector<ir::ExprId> unproven;  // the indices, where one of them may lie outside of its tile
};

// The parallel loop whose iterations are being emitted.
struct ElementContext : compiler::ThreadLoop {
  using compiler::ThreadLoop::ThreadLoop;
  std::vector<Value*> thread_part;  // i32, of each variable
  Value* first_copy = nullptr;      // i1: this thread holds the first copy of its elements; nullptr: no copies
  std::map<std::pair<uint32_t, std::vector<uint32_t>>, ElementAddress> addresses;
  int64_t current = 0;                          // register of the iteration being emitted
  Value* guard = nullptr;                       // i1: the iteration exists; nullptr: always
  std::unordered_map<uint32_t, Value*> loaded;  // loads of this iteration done as part of a vector
  // Vectors whose elements are no neighbours in the last variable: where each register's element lies, and what is loaded so far, by the
  // vector's first register.
  struct Scattered {
    std::vector<compiler::VectorPlace> places;
    std::map<int64_t, Values> loaded;
  };
  std::map<std::tuple<const ElementAddress*, ir::LoadForm, int32_t>, Scattered> scattered;
};

// Says that the program becomes more code than max_code. `loc`: where it did; none where the functions that are inlined made the difference.
void TooMuchCode(const compiler::Context& context, ir::Diagnostics& diagnostics, ir::SourceLoc loc);

class KernelLowering {
 public:
  // `code_before`: instructions of the kernels before this one.
  KernelLowering(const ir::Module& module, const ir::Kernel& kernel, const compiler::Context& context, llvm::Module& out,
                 ir::Diagnostics& diagnostics, int64_t code_before);
  ~KernelLowering();

  // False where diagnostics say why.
  bool Run(std::string_view entry);
  // Instructions up to the end of this kernel.
  int64_t Code() const { return code_before_ + builder_.getInserter().code(); }

 private:
  // --- lower.cc: kernels ---
  void MarkReadOnly();
  bool ElementsAreWhole(const ir::Block& body);
  void BindParameters(llvm::Function* function);
  void BindBlocks();
  void Allocate(ir::BufferId buffer);
  // --- statement.cc ---
  void LowerBlock(const ir::Block& block);
  void LowerStmt(const ir::Stmt& stmt);
  void EnterStmt(const ir::Stmt& stmt);
  void LowerFor(const ir::Stmt& stmt, const ir::For& loop);
  void LowerSerial(const ir::For& loop);
  void LowerUnrolled(const ir::For& loop, int64_t extent);
  void LowerIf(const ir::If& branch);
  void LowerBranch(const ir::Block& body, const std::optional<ir::ThreadRange>& threads);
  void LowerWhile(const ir::While& loop);
  void LowerStore(const ir::Store& store);
  void LowerAtomic(const ir::Atomic& atomic);
  void Once(const ir::Stmt& stmt, ir::BufferId written, const std::function<void()>& lower);
  void Unsupported(std::string message, std::string hint = {});
  // Whether there is more code than there may be; the first time, diagnostics say so.
  bool IsTooLong();
  // Code behind the next statement that never runs still needs a block.
  llvm::BasicBlock* NewBlock(const char* name);
  // Runs `emit` only where `condition` (nullptr: always) holds.
  template <typename Emit>
  void When(Value* condition, Emit&& emit) {
    if (condition == nullptr) return emit();
    llvm::BasicBlock* then = NewBlock("then");
    llvm::BasicBlock* end = NewBlock("end");
    b().CreateCondBr(condition, then, end);
    b().SetInsertPoint(then);
    emit();
    b().CreateBr(end);
    b().SetInsertPoint(end);
  }

  // --- expression.cc ---
  Value* Eval(ir::ExprId id);  // at the current iteration of a parallel loop, where there is one
  Value* EvalNode(ir::ExprId id, const ir::ExprNode& node);
  Value* EvalBinary(const ir::ExprNode& node, Value* a, Value* b);
  Value* EvalCompare(const ir::ExprNode& node, Value* a, Value* b, ir::DType type);
  Value* EvalSelect(const ir::ExprNode& node);  // and "and", "or"
  bool MayLeaveTile(ir::ExprId id) const;
  std::pair<Value*, Value*> Divide(const ir::ExprNode& node, Value* a, Value* c);
  Value* EvalLoad(ir::ExprId id, const ir::ExprNode& node);
  Value* EvalIndex(ir::ExprId id);  // as i64
  Value* Constant(ir::DType dtype, double value);
  Value* PadValue(const ir::Buffer& buffer);
  Value* FromMemory(Value* v, ir::DType dtype);  // bool: i8 → i1
  Value* ToMemory(Value* v, ir::DType dtype);
  Value* Reinterpret(Value* v, ir::DType from, ir::DType to);

  // --- memory.cc ---
  Value* Alloca(llvm::Type* type, int64_t count, const char* name);
  // What is known of a register in the block under construction. Only its first read and its last write there become memory accesses: the
  // time in which LLVM promotes them grows with the number of accesses times the length of the block. An access by address ends this
  // knowledge.
  struct HeldRegister {
    llvm::BasicBlock* block = nullptr;
    Value* pointer = nullptr;
    Value* value = nullptr;  // nullptr: not read or written here yet
    llvm::StoreInst* store = nullptr;
  };
  HeldRegister& Held(ir::BufferId fragment, int64_t reg);
  Value* LoadRegister(ir::BufferId fragment, int64_t reg);
  void StoreRegister(ir::BufferId fragment, int64_t reg, Value* v);
  void PutRegister(ir::BufferId fragment, int64_t reg, Value* v);          // writes by a product itself
  void UseRegisters(ir::BufferId fragment, int64_t first, int64_t count);  // tells the emulator which registers the last started products use
  std::vector<Value*> StridesOf(ir::BufferId global);                      // i64, elements
  // Element offset of an index tuple: global and local buffers.
  Value* FlatOffset(ir::BufferId buffer, std::span<const ir::ExprId> indices);
  Value* Swizzled(const ir::Swizzle& swizzle, Value* variable, int64_t constant);
  int64_t KnownZeros(Value* offset);
  Value* SharedPointer(ir::BufferId buffer, SplitOffset bytes, Value* after = nullptr);
  Value* ElementPointer(ir::BufferId buffer, std::span<const ir::ExprId> indices);
  Value* InsideOf(ir::BufferId global, std::span<const ir::ExprId> indices);  // i1, or nullptr: always
  bool MayBeEmpty(ir::BufferId global) const;
  bool MayLeave(ir::BufferId buffer, std::span<const ir::ExprId> indices) const;
  void CheckInside(ir::BufferId buffer, std::span<const ir::ExprId> indices, Value* exists, bool write);
  // `vectors`: of which the vector at the register is one; nullptr: it takes `width` neighbours in the last variable.
  void CheckNeighbours(const ElementAddress& address, int64_t reg, int64_t width, const ElementContext::Scattered* vectors, Value* exists,
                       bool write);
  void StopWhere(Value* outside, ir::BufferId buffer, std::span<Value* const> index, bool write);
  // `once`: past the first cache.
  Value* LoadGuarded(ir::BufferId buffer, llvm::Type* type, Value* pointer, Value* condition, llvm::Align align, Value* otherwise, bool once);
  llvm::Align AlignOf(ir::BufferId buffer, int64_t elements) const;
  // Byte offset of a region's start in a shared buffer, split for swizzling.
  struct RegionStart {
    Value* before = nullptr;  // to be swizzled together with the element's offset
    Value* after = nullptr;   // multiple of the swizzle's period
  };
  RegionStart StartOf(const ir::Region& region);
  int64_t SwizzlePeriod(ir::BufferId shared) const;
  // What an index in a dimension adds to the address, in bytes; i32.
  Value* SharedTerm(ir::BufferId shared, int dim, Value* index);

  // --- layouts as values ---
  std::vector<Value*> ThreadParts(const ir::Layout& layout, Value* thread);  // i32 of each dimension
  Value* IsFirstCopy(const ir::Layout& layout);
  Value* I32(int64_t value) { return b().getInt32(uint32_t(value)); }
  Value* I64(int64_t value) { return b().getInt64(uint64_t(value)); }
  Value* AddTo(Value* sum, Value* more);  // nullptr is zero
  Value* Scaled(Value* v, int64_t factor);

  // --- element_loop.cc ---
  void LowerParallel(const ir::Stmt& stmt, const ir::For& loop);
  void LowerChunks(const ir::For& loop);
  void LowerElements(const ir::For& loop);
  void LowerChunk(const ir::Store& store, int64_t first, int64_t count);
  void LowerAsyncChunk(const ir::Store& store, int64_t first, int64_t count);
  void SetIteration(int64_t reg);
  Value* GuardAt(int64_t reg);
  Value* JoinNeighbours(std::span<Value* const> values);
  bool IsOfPadding(std::span<const ir::ExprId> indices) const;
  bool PaddingIsTheSame(const ir::Store& store) const;
  void StoreElement(const ir::Store& store, int64_t reg, Value* v);
  using Loads = std::map<uint32_t, Values>;  // by load: its values for the neighbours under way
  Values EvalChunk(const ir::Store& store, int64_t first, int64_t count);
  Values EvalElements(ir::ExprId value, int64_t first, int64_t count, const Loads& loads);  // one by one
  Values LoadVector(const ir::LoadPlan& plan, const ElementAddress& address, int64_t first, int64_t count);
  Values LoadScattered(const ir::LoadPlan& plan, const ElementAddress& address, int64_t first, int64_t count);
  Values LoadNeighbours(const ir::LoadPlan& plan, const ElementAddress& address, int64_t reg, const ElementContext::Scattered* vectors);
  bool IsSamePlace(const ElementAddress& address, int64_t reg, int64_t other);
  void StoreVector(const ir::StorePlan& plan, const ElementAddress& address, int64_t first, std::span<Value* const> values);
  // --- pairs.cc ---
  Values EvalPacked(ir::ExprId value, int64_t packed, int64_t first, int64_t count, const Loads& loads);
  Values ConvertTogether(ir::ExprId cast, int64_t first, int64_t count, const Loads& loads);
  Value* PackIntegers(ir::ExprId id, int64_t first, const Loads& loads);
  Value* EvalPair(ir::ExprId id, int64_t first, const Loads& loads);
  Value* MakePair(ir::ExprId id, int64_t first, const Loads& loads);
  Value* MakeWord(ir::ExprId id, int64_t first, const Loads& loads);
  Value* MakeHalves(const ir::ExprNode& shift, int64_t first, const Loads& loads);
  std::optional<int64_t> ValueAt(ir::ExprId id, int variable, int64_t at) const;
  std::vector<int64_t> PlacesOf(int variable, int64_t reg) const;
  bool IsOne(ir::ExprId id, int64_t first) const;
  std::optional<int64_t> SettledAt(ir::ExprId id, int64_t reg) const;
  Value* MakeShiftedWord(const ir::ExprNode& node, int64_t first, const Loads& loads);
  Value* SmallIntegers(ir::ExprId cast, int64_t bias, int64_t first, const Loads& loads);

  // --- claims.cc ---
  bool IsClaimed(const ir::For& loop, const ir::Stmt& stmt) const;
  bool Reads(const ir::Stmt& stmt, ir::BufferId buffer) const;
  bool BeginClaim(const ir::For& loop);  // declares the elements that the loop writes; false: it has none to declare
  void ClaimIterations(const ir::For& loop);

  // --- element_address.cc ---
  const ElementAddress& AddressOf(ir::BufferId buffer, std::span<const ir::ExprId> indices);
  ElementAddress MakeAddress(ir::BufferId buffer, std::span<const ir::ExprId> indices);
  void MakeLinear(ElementAddress& address);
  void MakeChecks(ElementAddress& address, std::span<const ir::ExprId> indices);
  Value* ThreadPart(const compiler::LoopDigits& digits);
  SplitOffset OffsetAt(const ElementAddress& address, int64_t reg);
  Value* ConditionAt(const ElementAddress& address, int64_t reg);
  Value* PointerAt(const ElementAddress& address, int64_t reg);

  // --- ops ---
  void FindRings();
  void FindReleases(const ir::Block& block, const std::map<ir::BufferId, ir::BufferId>& rings);
  void LowerRoles();
  void InitRings();
  void FinishStores();
  void LowerRingStep(const ir::RingStep& step);
  void LowerTensorCopy(const ir::Copy& copy);
  Value* RingBarrier(ir::BufferId barriers, Value* index);
  std::pair<Value*, Value*> Position(ir::BufferId position);  // stage, parity
  void SetPosition(ir::BufferId position, Value* stage, Value* parity);
  Value* IsMyTurn(const ir::Ring& ring);
  Values BoxAt(const ir::Region& global, const compiler::TensorTile& tile, int64_t row, int64_t column);
  void LowerGemm(const ir::Gemm& gemm);
  void LowerMma(const ir::Gemm& gemm, const target::MmaInstruction& mma);
  void LowerScalarGemm(const ir::Gemm& gemm, const target::MmaInstruction& row);
  void LowerProductWait(ir::BufferId sum, int32_t pending);
  void LowerWgmma(const ir::Gemm& gemm, const target::MmaInstruction& mma);
  struct Descriptor {
    Value* low;     // addresses and offsets
    uint32_t high;  // swizzle and stride
  };
  Descriptor SharedDescriptor(const ir::Region& region, bool k_is_last);
  Value* DescriptorAt(const Descriptor& start, const ir::Region& region, int64_t row, int64_t k, bool k_is_last, Value* group_offset);
  struct Operand;
  struct GroupOperand;
  GroupOperand MakeGroupOperand(const ir::Region& region, bool k_is_last, const target::MmaInstruction& hardware, int64_t steps, Value* row,
                                Value* k);
  Values GroupWords(const GroupOperand& operand, int64_t atom, int64_t row, int64_t step);
  void LowerByWarps(const ir::Gemm& gemm, const target::MmaInstruction& mma);
  struct SharedRows;
  SharedRows MakeSharedRows(const ir::Region& region, Value* row, Value* k);
  Values HeldWords(ir::BufferId fragment, int64_t first, int64_t count);
  Values WordsOfRows(const SharedRows& rows, int64_t row, int64_t k, bool has_next);
  Operand MakeOperand(const ir::Region& region, const ir::Layout& layout, const target::MmaInstruction& mma, bool is_a, bool k_is_last,
                      const compiler::WarpGrid& grid);
  Values OperandWords(const Operand& operand, int64_t atom, int64_t step);
  Values FragmentWords(const Operand& operand, int64_t first_register);
  Values MatrixWords(const Operand& operand, int64_t atom, int64_t step);
  Values GatherWords(const Operand& operand, int64_t first_register);
  Value* PackWord(std::span<Value* const> elements, ir::DType dtype);
  void StoreByMatrix(const ir::Store& store);
  void BlockBarrier(bool by_group = false);
  void RangeBarrier();
  void LowerReduces(std::span<const ir::Stmt> reduces);  // several that exchange their partial results at one barrier
  void LowerPairSum(const ir::PairSum& sum);
  void LowerHalves(const ir::PairSum& sum);
  void LowerStreamSum(const ir::StreamSum& sum);
  int64_t Lanes() const;  // that exchange registers
  static ir::DType CombinedType(ir::DType dtype);
  std::map<int64_t, Value*> ReduceInWarps(const ir::Reduce& reduce);
  // One exchange within a cluster: how many exchanges there were before, and the mbarrier that counts the results to arrive.
  struct Turn {
    Value *count = nullptr, *parity = nullptr, *mbarrier = nullptr;
  };
  Turn BeginExchange(std::span<const ir::Stmt> reduces);
  void Exchange(std::span<const ir::Stmt> reduces, std::span<std::map<int64_t, Value*>> values, const Turn& turn);
  struct Partials;
  void InitExchanges();
  int64_t PartialBytes(const ir::Reduce& reduce) const;
  Partials PartialsOf(const ir::Reduce& reduce, Value* turn);
  Value* PartialPointer(const Partials& partials, int64_t reg, Value* which, int64_t constant);
  void StorePartial(const Partials& partials, int64_t reg, Value* v, Value* mbarrier);
  Value* JoinPartials(const Partials& partials, int64_t reg);
  Value* CombineAll(ir::ReduceKind kind, ir::DType dtype, Values values);
  Value* CombineInThread(ir::ReduceKind kind, ir::DType dtype, Values values);
  Value* Combine(ir::ReduceKind kind, ir::DType dtype, Value* a, Value* b);
  Value* ReduceIdentity(ir::ReduceKind kind, ir::DType dtype);

  llvm::IRBuilderBase& b() { return builder_; }
  llvm::LLVMContext& llvm() { return out_.getContext(); }
  const ir::ExprPool& pool() const { return module_.exprs; }

  const ir::Module& module_;
  const ir::Kernel& kernel_;
  const compiler::Context& context_;
  llvm::Module& out_;
  ir::Diagnostics& diagnostics_;
  CountingBuilder builder_;
  const int64_t code_before_;
  std::unique_ptr<Device> device_;
  compiler::Facts facts_;
  const compiler::Divergence divergence_;
  llvm::Function* function_ = nullptr;
  Value* block_thread_ = nullptr;         // i32, its number in the block
  ir::ThreadRange threads_;               // that come to the statement
  Value* thread_ = nullptr;               // i32, its number among these
  Value* warp_group_ = nullptr;           // i32, uniform; of the threads that do not fill rings
  Value* shared_ = nullptr;               // start of the block's shared memory
  bool too_long_ = false;                 // there is more code than there may be
  bool has_wgmma_ = false;                // shared memory is read by the asynchronous proxy
  std::set<ir::BufferId> in_products_;    // fragments whose registers wgmma reads or writes
  bool has_stores_ = false;               // of tensors
  std::map<ir::BufferId, Value*> turns_;  // by scratch of a cluster's reductions: how often each has run
  bool multicast_ = false;                // some ring is
  std::vector<compiler::TensorMap> maps_;
  Values map_arguments_;
  struct RingUse {
    ir::BufferId position;
    bool by_thread;      // each thread releases a stage for itself, not one lane for its warp
    bool fenced;         // threads read it with loads of their own; the next copy must wait for these
    bool multicast;      // the other block of the cluster fills it too
    uint32_t statement;  // the first that fills it
  };
  std::map<ir::BufferId, RingUse> rings_;                           // by barriers
  const compiler::ProducerSlice* slice_ = nullptr;                  // set while the producers' part is lowered
  std::map<uint32_t, Value*> vars_;                                 // by variable
  std::map<uint32_t, Value*> memory_;                               // global: pointer; fragment and local: array
  std::map<std::pair<uint32_t, int64_t>, HeldRegister> registers_;  // by fragment and number
  ElementContext* element_ = nullptr;
  ir::SourceLoc loc_;
  struct LoopBlocks {
    llvm::BasicBlock* next;
    llvm::BasicBlock* end;
  };
  std::vector<LoopBlocks> loops_;
  // Values of subexpressions of the current expression, each computed once.
  std::unordered_map<uint32_t, Value*> evaluated_;
  bool evaluating_ = false;
  std::unordered_map<uint32_t, Value*> pairs_;  // the same for expressions evaluated for two neighbours at once
  Value* arm_ = nullptr;                        // condition of the current select arm, if loads in the arm depend on it
  // Swizzled offsets are shared between accesses: (variable, low constant, swizzle bits, shift) in one basic block.
  std::map<std::tuple<Value*, int64_t, int, int, llvm::BasicBlock*>, Value*> swizzled_;
  std::map<Value*, int64_t> zeros_;  // low bits of an offset that are known to be 0
};

// One operand as the instruction takes it, with rows (m of a, n of b) by k.
struct KernelLowering::Operand {
  ir::BufferId buffer;
  const target::MmaInstruction* mma;
  bool is_a;
  ir::Layout layout;                     // (row, k) → (thread, register), the whole block
  ir::Layout atom;                       // of one instruction
  int64_t steps;                         // instructions along k
  int64_t row_dim, k_dim;                // dimensions of the buffer
  int64_t row_stride = 0, k_stride = 0;  // shared: bytes
  RegionStart start;
  std::vector<Value*> thread_part;      // (row, k) of the thread's first element
  int64_t alignment = 1;                // bytes, of every row's start; at most 16
  bool by_matrix = false;               // ldmatrix
  bool transposed = false;              // ldmatrix.trans: rows are contiguous
  Value* matrix_offset = nullptr;       // bytes of this lane's row in the four matrices
  Value* matrix_offset_pair = nullptr;  // the same for two neighbouring instructions of b
};

}  // namespace kiln::llvm_ir
