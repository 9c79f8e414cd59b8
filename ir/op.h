// SPDX-License-Identifier: Apache-2.0
//
// The statements of the tile IR: what each means, and what the passes decide of it. ir/fields.h tells once what each consists of.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/expr/expr.h"
#include "ir/layout.h"

namespace kiln::ir {

// offset[d] ≤ index[d] < offset[d] + extent[d]
struct Region {
  BufferId buffer{};
  std::vector<ExprId> offsets;
  std::vector<int64_t> extents;
};

struct Element {
  BufferId buffer{};
  std::vector<ExprId> indices;
};

struct Stmt;
using Block = std::vector<Stmt>;

// --- What programs consist of; passes make more of them. ---

// Allocates `buffer`, which is not global, for the rest of the block. Each buffer is allocated once. Its elements start unspecified.
struct Alloc {
  BufferId buffer;
};

// kSerial, kUnroll: one iteration after the other; all threads run each. kParallel: in no order, each of them once, spread over the
// threads. kVectorized: in no order, all threads run each; kUnroll from canonicalize on, until it has a layout. kPipelined: as kSerial, and
// copies of later iterations may run early; pipeline leaves none. kPersistent: as kSerial, where all threads of the block pass.
enum class LoopKind : uint8_t { kSerial = 1, kUnroll = 2, kParallel = 3, kVectorized = 4, kPipelined = 5, kPersistent = 6 };
// The body for all values of `vars`, 0 ≤ var < extent; none where an extent is 0 or less. Within kParallel and kVectorized there are
// only Let, Store, Atomic, Assume, Alloc of locals, and control flow around them.
struct For {
  LoopKind kind;
  std::vector<VarId> vars;  // each from 0; several only for kParallel
  std::vector<ExprId> extents;
  Block body;
  uint32_t num_stages = 0;       // kPipelined: iterations whose copies may be there or under way at one time, this one among them
  uint32_t coalesced_width = 0;  // kParallel: elements a thread takes at once; 0: inferred
  std::optional<Layout> layout;  // decided. kParallel: iteration tuple → (thread, register); kVectorized: iteration → register
};
// Threads of a block by number, from `begin` to one before `end`.
struct ThreadRange {
  uint32_t begin = 0, end = 0;
  uint32_t barrier = 0;  // decided: number of the barrier for just these threads; 0: they need none, or the barrier of their warp is enough

  uint32_t Count() const { return end - begin; }
  bool Holds(const ThreadRange& other) const { return begin <= other.begin && other.end <= end; }
  bool IsSame(const ThreadRange& other) const { return begin == other.begin && end == other.end; }
};
// Runs one of the two bodies, depending on a bool. Decided, for a body with statements that threads do together: either exactly the threads
// of a range come to it or none does, and they do such a statement among themselves. Without a range, all threads that come to the If take
// the same branch.
struct If {
  ExprId cond;
  Block then_body, else_body;
  std::optional<ThreadRange> then_threads = {}, else_threads = {};

  bool IsNarrowed() const { return then_threads || else_threads; }
};
// Runs the body as long as the bool holds; it is evaluated before each iteration.
struct While {
  ExprId cond;
  Block body;
};
// Gives `var` the value that `value` has here, for the rest of the block.
struct Let {
  VarId var;
  ExprId value;
};

// How a thread loads what its elements of a parallel loop need. kEach: one by one, each with an address of its own. The other forms share
// the address's variable part. kSame: neighbours in the loop's last variable take one element. kVector: they take neighbours in memory, so
// many at once. kAcross: the same along another of the loop's variables. kGathered: vectors of shared memory of which the thread needs
// every element, in whatever iterations. kAround: as kVector, of neighbours in a row of a tensor that begin anywhere, also before it, and
// may end beyond the row: by the two aligned vectors around them, whatever a mask says. kClipped: the same of neighbours that begin where
// a vector does, so one has them all; also of tiles.
enum class LoadForm : uint8_t { kEach = 0, kSame = 1, kVector = 2, kAcross = 3, kGathered = 4, kAround = 5, kClipped = 6 };
// Whether such a load takes elements that it gives nobody: those beyond a row's end, or where a mask does not hold.
constexpr bool TakesOthers(LoadForm form) { return form == LoadForm::kAround || form == LoadForm::kClipped; }
// Whether such a load takes elements of other iterations than those in a row.
constexpr bool IsScattered(LoadForm form) { return form == LoadForm::kAcross || form == LoadForm::kGathered; }
struct LoadPlan {
  BufferId buffer{};
  LoadForm form = LoadForm::kEach;
  int32_t width = 1;    // elements at once: of kVector and what follows it
  uint32_t across = 0;  // kAcross: number of the variable
  bool once = false;    // past the first cache, for nothing of it is read again
};
// How a store goes. kRegisters: to the registers of a fragment. kVector: to memory, several neighbours at once. kMatrix: 8×8 matrices of a
// warp by stmatrix, whose rows are the rows in memory; kTransposed: whose columns are.
enum class StoreForm : uint8_t { kRegisters = 0, kVector = 1, kMatrix = 2, kTransposed = 3 };
struct StorePlan {
  StoreForm form = StoreForm::kRegisters;
  int32_t width = 1;            // kVector: elements at once
  bool parted = false;          // kVector: where not all neighbours are inside and meet the condition around, they go one by one
  bool kept = false;            // the L2 keeps the lines longer than others
  int32_t packed = 1;           // neighbours whose value is computed at once, in one register
  std::vector<LoadPlan> loads;  // of global and shared memory in the value, in the order of ReadsOf
};
// buffer[indices] = value, of the buffer's type.
struct Store {
  BufferId buffer;
  std::vector<ExprId> indices;
  ExprId value;
  bool async = false;                  // decided: done by cp.async; the value is a load, or a masked one that else gives zero
  std::optional<StorePlan> plan = {};  // decided, in a parallel loop; without one, elements are loaded and stored one by one
};
// The program promises that the bool holds. Nothing checks this, and later statements may rely on it.
struct Assume {
  ExprId cond;
};

// Decided: a ring, i.e. tiles in shared memory that one thread fills ahead of the threads that use them. `barriers` has two for each stage:
// filled (0 … stages − 1) and emptied (stages … 2·stages − 1). `position` is local to each thread: the stage and the parity of its phase,
// both 0 at first.
struct Ring {
  BufferId barriers{};
  BufferId position{};
};

// How a copy is done. kDirect: each thread loads and stores its elements; kAsync: cp.async, visible after AsyncCommit and
// AsyncWait; kTensor: one thread asks for whole boxes, loads into a ring's stage, stores until AsyncWait{stores}.
enum class CopyInstruction : uint8_t { kDirect = 0, kAsync = 1, kTensor = 2 };
struct CopyPlan {
  CopyInstruction instruction = CopyInstruction::kDirect;
  int32_t vector = 1;            // elements in one access
  std::optional<Layout> layout;  // tile of the copy (non-unit extents, or flattened to one dimension) → (thread, register)
  std::optional<Ring> ring;      // kTensor, to shared memory
  bool multicast = false;        // into a ring: the blocks of the cluster take turns in loading for all of them
  bool panels = false;           // kTensor, to shared memory: a box takes all columns, even if they are wider than a swizzle
  bool adds = false;             // kTensor, from shared memory: dst += src, each element atomically
  // kTensor, from shared memory: groups of four warps along the tile's rows and columns, each of which stores what it wrote. 0: one
  // thread stores all.
  uint32_t groups_m = 0, groups_n = 0;
};
// dst = src, each element converted to the destination's type. The extents of the two are the same but for those of 1. From layouts on
// only loads from global to shared memory and tensor copies are left (the others are parallel loops), from threads on only tensor copies.
struct Copy {
  Region src;
  Region dst;
  uint32_t coalesced_width = 0;
  std::optional<CopyPlan> plan = {};
  std::optional<Element> signals = {};  // one of the program's barriers: its turn under way is not over before the elements are there (Arrive)
};

// How a product's metadata say where the elements of a sparse a were, row by row. Four bits are for one group, that of the smallest k in the lowest:
// the place of its first kept element in the lower two bits, then that of the second, which lies behind it. In a group of two 32-bit elements one
// is kept, and the bits are the places of its halves: 0b0100 or 0b1110. Other bits give unspecified results, unless what is kept is 0.
struct Sparsity {
  static constexpr int kBits = 4;  // of metadata, for a group
  int group;                       // neighbours along k, of which half are kept

  explicit Sparsity(DType a) : group(Bits(a) == 32 ? 2 : 4) {}
  int Kept() const { return group / 2; }
  // Elements of a row that one element of the metadata is for.
  int64_t Each(DType metadata) const { return int64_t(Bits(metadata)) / kBits * group; }
};

enum class WarpPolicy : uint8_t { kSquare = 0, kFullRow = 1, kFullCol = 2 };
struct GemmPlan {
  std::string instruction;  // the name of its row in the target's table
  int32_t warps_m = 1;
  int32_t warps_n = 1;
  int32_t warps_k = 1;     // parts of k, each with a sum of its own: the first dimension of c. Further warps compute copies
  bool in_flight = false;  // wgmma only: keeps running until an AsyncWait for c, or until the next product that adds to c has ended
  bool by_warps = false;   // each warp of a group computes its rows with mma.sync: faster than wgmma for few columns
  bool promoted = false;   // summed separately, then added to c, because the instruction's own sums have fewer bits than c
  bool as_sums = false;    // a's columns, in registers, lie as a sum's do, and b's rows are in the order in which the instruction then takes them
};
// c += op(a) · op(b), m × n from m × k and k × n: the last two dimensions of each region; the others are of extent 1. a and b are shared or
// fragments of one float type, or both of 8-bit floats, or of integers of 8 or 4 bits; c is a fragment of floats at least as wide, or of i32.
// With metadata, of every group of neighbours along k at most half are not zero: a holds these, m × k/2, and the metadata where they were (Sparsity).
struct Gemm {
  Region a, b, c;
  bool transpose_a = false, transpose_b = false;  // the region holds k × m, n × k
  WarpPolicy policy = WarpPolicy::kSquare;        // how the program wants warps to share c's rows and columns
  bool clear_accum = false;                       // c = op(a) · op(b)
  bool allow_tf32 = false;                        // of f32: the low 13 bits of a and b may be left out, as tf32 has none
  std::optional<Region> metadata = {};            // integers of 8, 16 or 32 bits, m × k/e: shared or a fragment
  bool transpose_metadata = false;                // the region holds k/e × m
  std::optional<GemmPlan> plan;
};
// An instruction that the program has chosen: each warp that comes computes c += a · b, m × n from m × k and k × n. Each thread holds its part of
// them in arrays of its own, as the instruction's row (target/instructions.h) lays them out over lanes and registers: all of a region of one
// dimension, in the order of the registers.
struct Mma {
  Region a, b, c;
  uint32_t m = 16, n = 8, k = 16;
};
// With a buffer: the address of the element that lies `value` elements behind the buffer's first in memory. Without: `value` itself.
struct Argument {
  std::optional<BufferId> buffer = {};
  ExprId value{};
};
// Each thread that comes to it calls a function of another language; what that gives back is dropped. All threads of the block come to it together,
// and the function counts them as threads of one dimension, as many as the kernel has. It may read and write every element of the buffers
// that it gets, which are global or shared, in any thread, and wait for the block's other threads. A shared one lies in memory by rows.
struct Call {
  FunctionId function{};
  std::vector<Argument> arguments;
};
// Each element of dst = value, of its type. A parallel loop from layouts on.
struct Fill {
  Region dst;
  ExprId value;
};

enum class ReduceKind : uint8_t { kSum = 1, kMax = 2, kMin = 3, kAbsMax = 4, kAbsSum = 5, kBitAnd = 6, kBitOr = 7, kBitXor = 8 };
// dst = src's elements along `dim`, combined; kAbs: their absolute values. Both shared or fragments of one type, fragments from layouts on.
struct Reduce {
  ReduceKind kind;
  Region src;
  Region dst;  // the extents of src without `dim`, or with 1 there
  int32_t dim;
  bool clear = true;                // false: combined with what dst holds, too
  std::optional<BufferId> scratch;  // decided: shared memory in which warps exchange partial results
  bool cluster = false;             // decided: also combined with the results of the cluster's other blocks
};

// kBitAnd, kBitOr, kBitXor: of integers. kExchange: the value. kCompareExchange: the value where the element has the bits of `compare`, else
// what it was. kLoad: what it was. kStore, only with Atomic::block: the value, but in no atomic step, so that it races as a Store does.
enum class AtomicKind : uint8_t {
  kAdd = 1,
  kMax = 2,
  kMin = 3,
  kBitAnd = 4,
  kBitOr = 5,
  kBitXor = 6,
  kExchange = 7,
  kCompareExchange = 8,
  kLoad = 9,
  kStore = 10
};
// What else an atomic orders, for all threads of the device. kRelease: whoever acquires what it leaves sees all that the block did before it.
// kAcquire: the block then sees what was done before the release of what it read. kSeqCst: those of all threads are in one order, too.
enum class MemoryOrder : uint8_t { kRelaxed = 0, kAcquire = 1, kRelease = 2, kAcqRel = 3, kSeqCst = 4 };
// buffer[indices] = kind(buffer[indices], value), in one step for all threads that see the buffer. Global or shared, of 16 bits or more.
// Of one kind on one buffer, all but exchanges and stores come in any order, except within a thread; where threads run apart, all but stores do.
// `block`: of a shared buffer, not that of this block but that of the block of this rank in the cluster. That block sees it after a barrier of the
// cluster, or after an Await of what this block has arrived at since; nothing else orders it. Ranks count along the grid's first dimension first.
struct Atomic {
  AtomicKind kind;
  BufferId buffer;
  std::vector<ExprId> indices;
  ExprId value{};                             // not of kLoad
  bool each_thread = false;                   // outside of parallel loops: by each thread that comes to it, also where they all do the same
  ExprId compare{};                           // of kCompareExchange
  std::optional<Element> old = {};            // local, takes the element from before; where that does not exist: the pad value
  MemoryOrder order = MemoryOrder::kRelaxed;  // with a block: kRelaxed, as the others order accesses of global memory only
  std::optional<ExprId> block = {};

  bool TakesValue() const { return kind != AtomicKind::kLoad; }
  bool Compares() const { return kind == AtomicKind::kCompareExchange; }
  bool Acquires() const { return order != MemoryOrder::kRelaxed && order != MemoryOrder::kRelease; }
  bool Releases() const { return order >= MemoryOrder::kRelease; }
};

// All threads that come here wait for each other, and see what the others have done to memory. Programs need none: synchronize inserts the
// barriers that their statements need. `grid`: those of all blocks wait for each other, and see what all did to global memory. The launch then
// asks for all blocks to be on the device at one time, and fails where they do not fit. Each block comes to it equally often. `cluster`: those of the
// blocks of the cluster, likewise, for global and for their shared memory.
struct Barrier {
  bool grid = false;
  bool cluster = false;
  bool by_group = false;                 // decided: each group of four warps for itself
  bool shared_only = false;              // decided: what they did to shared memory alone; accesses of global memory may still be under way
  std::optional<BufferId> counter = {};  // decided, of a grid: a number in global memory by which the blocks tell when all have come
};

// A barrier buffer holds barriers of the program's own. A turn of one is over when as many threads have arrived as Buffer::arrivals says, and what
// the copies that signal it bring is there; then the next turn begins. Turns count from 0.
// Arrive: each thread that comes to it has done what stands before it. From there on the program itself orders that for threads of other
// branches: they see it after an Await, and the compiler puts no barrier between them. `block`: at the barrier of the block of this rank in the
// cluster, whose threads then see it.
struct Arrive {
  BufferId buffer{};
  std::vector<ExprId> indices;
  std::optional<ExprId> block = {};
  bool after_copies = false;    // decided: it counts once what the thread has begun to copy asynchronously is there; the thread goes on
  bool after_accesses = false;  // decided: and all else that the thread has done, of which the copies' unit knows nothing
};
// Each thread that comes to it waits until the latest turn of this parity is over, and sees what those who arrived had done. (At first the turn
// before the first, of parity 1, is over.)
struct Await {
  BufferId buffer{};
  std::vector<ExprId> indices;
  ExprId parity{};  // an integer, of which the lowest bit counts
};
// The threads that come to it, whole groups of four warps, have so many registers each from here on. `more`: they wait until others have given up
// as many as they lack; else they give up what they have beyond. No effect where a multiprocessor does not share out registers, or where it does
// not have as many as all groups ask for.
struct Registers {
  uint32_t count = 0;
  bool more = false;
};
// Leave the innermost loop, or its iteration; not of a parallel or vectorized one.
struct Break {};
struct Continue {};

// --- Made by passes, never on the wire. ---

// Closes the group of async copies (cp.async) issued since the last AsyncCommit. Inserted by pipeline and synchronize.
struct AsyncCommit {};
// Each thread waits. Inserted for async copies by pipeline and synchronize, for tensor stores by synchronize, for products by overlap.
struct AsyncWait {
  int32_t pending;                       // until at most so many of the newest groups are unfinished
  bool stores = false;                   // of tensor stores: until they have read their source
  std::optional<BufferId> product = {};  // of products in flight: waits until this sum is finished
};
// Inserted by rings; overlap moves releases behind later steps. kAcquire: the filling thread waits until the stage is empty, and expects
// `bytes`. kWait: the other threads wait until the stage is full. kRelease: they no longer need it, or the stage of `behind` steps ago.
// kAdvance: each thread goes on to the next stage.
enum class RingAction : uint8_t { kAcquire = 0, kWait = 1, kRelease = 2, kAdvance = 3 };
struct RingStep {
  RingAction action;
  Ring ring;
  int64_t bytes = 0;
  int32_t behind = 0;
};
// Inserted by split_pairs. Two blocks of a cluster add their fragments. Each gets its half of the total along `dim`, the first block the
// lower one. Without `half`, the first block adds the other's fragment to its own, and the other's is meaningless afterwards.
struct PairSum {
  BufferId sum;
  std::optional<BufferId> half = {};
  int32_t dim = 0;
  std::optional<BufferId> scratch = {};  // decided: shared memory that the other block writes to
  int32_t vector = 0;                    // decided by accesses: registers of a thread that go in one access
};
// Inserted by stream_k. The blocks that share the steps of one tile add their parts of its sum. A block that does not own the tile stores
// its part at its place in `partials` (blocks × the sum's elements) and raises its flag. The owner adds the parts of the `parts` blocks
// numbered below it, nearest first, and lowers their flags.
struct StreamSum {
  BufferId sum;
  BufferId partials, flags;  // global; flags: one of each block, 0 before and after each launch
  ExprId block;              // its number
  ExprId owns;               // bool
  ExprId parts;
  int32_t vector = 0;  // decided by accesses: registers of a thread that go in one access
};

// One alternative for each row of ops.def, in its order.
template <typename, typename... Ts>
struct OpOf {
  using Type = std::variant<Ts...>;
};
#define KILN_OP(number, type, name, family, since) , type
using Op = OpOf<void
#include "ir/ops.def"
                >::Type;

struct Stmt {
  Op op;
  SourceLoc loc;
};

// The op's name in the text form and on the wire ("copy"), and its number there; 0: one that only passes make.
std::string_view Name(const Op& op);
uint32_t WireNumber(const Op& op);

// std::visit with one lambda for each alternative.
template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

// What kind of op a row of ops.def is. An elementwise op is a shorter way to write a parallel loop, which it becomes in the pass layouts: it
// gives each element of its destination a value, in no order. Passes need not tell such ops apart, for ir/fields.h says all that they ask.
enum class Family : uint8_t { control, elementwise, matrix, memory, reduction, scalar, sync };
// The row of ops.def.
template <typename T>
struct OpRow;
#define KILN_OP(number, type, name, family, since)    \
  template <>                                         \
  struct OpRow<type> {                                \
    static constexpr uint32_t kNumber = number;       \
    static constexpr std::string_view kName = name;   \
    static constexpr Family kFamily = Family::family; \
  };
#include "ir/ops.def"
// Calls fn(std::type_identity<T>()) for the type of each row.
template <typename Fn>
void ForEachOpType(Fn&& fn) {
#define KILN_OP(number, type, name, family, since) fn(std::type_identity<type>());
#include "ir/ops.def"
}
template <typename T>
concept Elementwise = OpRow<std::remove_const_t<T>>::kFamily == Family::elementwise;

// In the lists below: all ops of the family elementwise.
struct AnyElementwise {};

// For Overloaded: lists the ops that a pass deliberately leaves alone, so that a new op fails to compile where nobody has considered it.
template <typename T>
struct IgnoredOne {
  void operator()(const T&) const {}
};
template <>
struct IgnoredOne<AnyElementwise> {
  void operator()(const Elementwise auto&) const {}
};
template <typename... Ts>
struct Ignored : IgnoredOne<Ts>... {
  using IgnoredOne<Ts>::operator()...;
};
// For a lambda of Overloaded that treats several alike: []<ir::OneOf<ir::Copy, ir::Gemm> T>(const T& op) { … }
template <typename T, typename... Ts>
concept OneOf = ((std::same_as<T, Ts> || (std::same_as<Ts, AnyElementwise> && Elementwise<T>)) || ...);
template <typename... Ts>
bool IsOneOf(const Op& op) {
  return std::visit([]<typename T>(const T&) { return OneOf<T, Ts...>; }, op);
}

}  // namespace kiln::ir
