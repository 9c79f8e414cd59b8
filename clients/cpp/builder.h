// SPDX-License-Identifier: Apache-2.0
//
// kiln::Builder: tile programs written in C++. What it makes goes into CompileRequest.module.
//
//   kiln::Builder b("scale");
//   kiln::Expr m = b.Symbol("m");
//   kiln::Tile x = b.Tensor("x", kiln::DType::kF16, {m, 64}), y = b.Output("y", kiln::DType::kF16, {m, 64});
//   b.Launch({.grid = {CeilDiv(m, 128)}}, [&](kiln::Expr bx) {
//     kiln::Tile tile = b.Fragment("tile", kiln::DType::kF16, {128, 64});
//     b.Copy(x[bx * 128, 0], tile);
//     b.Parallel({128, 64}, [&](kiln::Expr i, kiln::Expr j) { b.Store(tile[i, j], Max(tile[i, j], 0)); });
//     b.Copy(tile, y[bx * 128, 0]);
//   });
//   auto module = b.Finish();
//
// Loads outside a tensor's shape give zero and stores there do nothing. Each statement sees the effects of those before it. Mistakes are
// gathered and told by Finish, each with the line of C++ that made it. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "clients/cpp/client.h"
#include "clients/cpp/expr.h"

namespace kiln {

class Element;
class Region;

// A tensor of the program, or a tile in shared memory, in the registers of a block (a fragment) or of a thread (local).
class Tile {
 public:
  template <class... Index>
  Element operator[](const Index&... index) const;

  // The box of constant `extents` that starts at `offsets`.
  Region Slice(std::vector<Expr> offsets, std::vector<std::int64_t> extents) const;

 private:
  friend struct BuilderState;
  friend class Builder;
  friend class Element;
  Tile(BuilderState* state, std::uint32_t id) : state_(state), id_(id) {}

  BuilderState* state_;
  std::uint32_t id_;
};

// One element, which is also the first of a box as large as the other operand of a copy.
class Element {
 public:
  operator Expr() const;

 private:
  friend class Tile;
  friend class Builder;
  friend class Region;
  friend struct BuilderState;
  Element(Tile tile, std::vector<Expr> index) : tile_(tile), index_(std::move(index)) {}

  Tile tile_;
  std::vector<Expr> index_;
};

template <class... Index>
Element Tile::operator[](const Index&... index) const {
  return Element(*this, {Expr(index)...});
}

// An operand of a tile operation: all of a tile, a slice, or what starts at an element.
class Region {
 public:
  Region(Tile tile) : tile_(tile) {}
  Region(Element first) : tile_(first.tile_), offsets_(std::move(first.index_)), kind_(Kind::kFrom) {}

 private:
  friend class Tile;
  friend struct BuilderState;
  enum class Kind : std::uint8_t { kAll, kFrom, kBox };
  Region(Tile tile, std::vector<Expr> offsets, std::vector<std::int64_t> extents)
      : tile_(tile), offsets_(std::move(offsets)), extents_(std::move(extents)), kind_(Kind::kBox) {}

  Tile tile_;
  std::vector<Expr> offsets_;
  std::vector<std::int64_t> extents_;
  Kind kind_ = Kind::kAll;
};

enum class Language : std::uint8_t { kLlvm = 1, kPtx };

// A function in another language, which Builder::Function makes.
class Function {
 private:
  friend class Builder;
  explicit Function(std::uint32_t id) : id_(id) {}

  std::uint32_t id_;
};

// What a call gives: the address of the element that lies `behind` elements behind the first of a tensor or a tile in shared memory, or a value.
class FunctionArgument {
 public:
  FunctionArgument(Tile tile, Expr behind = 0) : tile_(tile), value_(std::move(behind)) {}
  FunctionArgument(Expr value) : value_(std::move(value)) {}

 private:
  friend class Builder;
  std::optional<Tile> tile_;
  Expr value_;
};

enum class ReduceKind : std::uint8_t { kSum = 1, kMax, kMin, kAbsMax, kAbsSum, kBitAnd, kBitOr, kBitXor };
enum class AtomicKind : std::uint8_t { kAdd = 1, kMax, kMin, kBitAnd, kBitOr, kBitXor, kExchange, kCompareExchange, kLoad, kStore };
enum class MemoryOrder : std::uint8_t { kRelaxed, kAcquire, kRelease, kAcqRel, kSeqCst };
enum class WarpPolicy : std::uint8_t { kSquare, kFullRow, kFullCol };

struct LaunchOptions {
  std::vector<Expr> grid;  // x, y, z
  std::uint32_t threads = 128;
  std::vector<std::uint32_t> cluster;
  std::uint32_t raster_panel = 0;  // width of the panels in which blocks are ordered, for the L2 cache; 0: rows
  std::uint32_t min_blocks = 0;    // on a multiprocessor, for which registers are kept few enough; 0: not asked for
  std::string name = "main";
};

struct AtomicOptions {
  bool each_thread = false;         // outside of parallel loops: by each thread that comes to it, also where they all do the same
  std::optional<Element> old = {};  // of a local: takes what the element was before
  MemoryOrder order = MemoryOrder::kRelaxed;
  std::optional<Expr> block = {};  // of a shared tile: that of the block of this rank in the cluster. kStore needs it
};

struct GemmOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  WarpPolicy policy = WarpPolicy::kSquare;
  bool clear = false;       // the accumulator, before
  bool allow_tf32 = false;  // of float32: the matrix units may leave out the low 13 bits of a and b
  // Of every four neighbours along k (of 32-bit elements every two), a holds the half that may not be zero, and this where they were, four bits for
  // each group. Of an integer type.
  std::optional<Region> metadata = {};
  bool transpose_metadata = false;
};

class Builder {
 public:
  using Where = std::source_location;
  using Vars = std::span<const Expr>;
  using Body = std::function<void()>;

  explicit Builder(std::string name);
  ~Builder();
  Builder(Builder&&) noexcept;
  Builder& operator=(Builder&&) noexcept;

  // The function's parameters, in the order of these calls. A symbol is a dimension or stride that is known at launch; it is no
  // parameter: the launcher solves for it. Outputs are allocated and returned by launchers that can.
  Expr Symbol(std::string name, DType dtype = DType::kI32);
  Tile Tensor(std::string name, DType dtype, std::vector<Expr> shape, std::vector<Expr> strides = {}, Where where = Where::current());
  Tile Output(std::string name, DType dtype, std::vector<Expr> shape, std::vector<Expr> strides = {}, Where where = Where::current());
  Expr Scalar(std::string name, DType dtype);
  // This tensor parameter may overlap the others that say so. All others are taken as distinct where the kernel writes one of them.
  void MayAlias(const Tile& tensor, Where where = Where::current());
  // Global memory that the launches of this function share; the launcher provides it.
  Tile Workspace(std::string name, DType dtype, std::vector<Expr> shape, Where where = Where::current());

  // One kernel; several run in order. `body` takes as many block indices as the grid has dimensions.
  template <class F>
  void Launch(const LaunchOptions& options, F&& body, Where where = Where::current()) {
    LaunchVars(options, Arity<F>(), [&body](Vars vars) { Invoke(body, vars); }, where);
  }

  Tile Shared(std::string name, DType dtype, std::vector<std::int64_t> shape, Where where = Where::current());
  Tile Fragment(std::string name, DType dtype, std::vector<std::int64_t> shape, Where where = Where::current());
  Tile Local(std::string name, DType dtype, std::vector<std::int64_t> shape, Where where = Where::current());

  // Barriers of the program's own, for threads of different branches (Arrive): how many threads arrive in a turn of each.
  Tile Barriers(std::string name, std::vector<std::uint32_t> arrivals, Where where = Where::current());
  // The thread's number in its block: conditions on it tell warp groups apart.
  Expr Thread();

  // A number with a type of its own.
  Expr Number(DType dtype, const Expr& number);

  // Converts as Cast does where the types differ. Apart from extents of 1, both have the same extents in the same order.
  void Copy(const Region& from, const Region& to, Where where = Where::current());
  // From a tensor to shared memory; the turn of the barrier that is under way is not over before the elements are there.
  void CopySignalling(const Region& from, const Region& to, const Element& barrier, Where where = Where::current());
  // c += op(a) · op(b): m × k by k × n into m × n, in the last two dimensions of each; those before have one element. a and b are in shared
  // memory or fragments, c is in a fragment. Types: a and b of one float type, or both 8-bit floats, and c a float at least as wide and of
  // 16 bits at least; or a and b integers of one width, 8 or 4 bits, and c kI32.
  void Gemm(const Region& a, const Region& b, const Region& c, const GemmOptions& options = {}, Where where = Where::current());
  // An instruction of each warp, m × n × k: c += a · b. Each thread holds its part of them in local arrays, in the order of the instruction's
  // registers, as PTX has them for mma.sync. Refused on targets that have none of this shape and these types.
  void Mma(const Region& a, const Region& b, const Region& c, std::array<std::uint32_t, 3> m_n_k, Where where = Where::current());
  // `text`: a module in LLVM's IR or in PTX that defines `symbol`. kilnd compiles it for callers who have the scope `raw`.
  kiln::Function Function(Language language, std::string symbol, std::string text);
  // All threads of the block call it together. It may read and write all of the tensors and tiles that it gets, which lie in memory by rows.
  void Call(const kiln::Function& function, const std::vector<FunctionArgument>& arguments, Where where = Where::current());
  void Fill(const Region& to, const Expr& value, Where where = Where::current());
  // Along `dim` of `from`, counted from 0: `to` has the shape of `from` without that dimension, or with 1 there, and its type. Both are in
  // shared memory or fragments. `clear`: without what `to` holds.
  void Reduce(ReduceKind kind, const Region& from, const Region& to, int dim, bool clear = true, Where where = Where::current());
  void Store(const Element& to, const Expr& value, Where where = Where::current());
  // In a parallel loop it is done for each iteration. Elsewhere once for the block, or with `each_thread` by each of its threads.
  void Atomic(AtomicKind kind, const Element& to, const Expr& value, const AtomicOptions& options = {}, Where where = Where::current());
  // to = value if it has the bits of `compare`.
  void CompareExchange(const Element& to, const Expr& compare, const Expr& value, const AtomicOptions& options = {}, Where where = Where::current());
  // old = from
  void AtomicLoad(const Element& from, const Element& old, MemoryOrder order = MemoryOrder::kRelaxed, Where where = Where::current());
  Expr Let(std::string name, const Expr& value, Where where = Where::current());
  void Assume(const Expr& condition, Where where = Where::current());
  void Barrier(Where where = Where::current());
  // All threads of all blocks, which must be on the device at one time: a launch of more fails. Each block comes to it equally often.
  void GridBarrier(Where where = Where::current());
  // All threads of the blocks of the cluster, which then see what all did to each other's shared memory.
  void ClusterBarrier(Where where = Where::current());
  // Each thread that comes to it has done what stands before it. From here on the program itself orders that for threads of other branches: they
  // see it after an Await.
  void Arrive(const Element& barrier, Where where = Where::current());
  // The same at the barrier of the block of this rank in the cluster. In a cluster of c blocks along the grid's first dimension the block's own
  // rank is bx % c; along further dimensions ranks go on, the first dimension first.
  void ArriveAt(const Element& barrier, const Expr& rank, Where where = Where::current());
  // Each thread that comes to it waits until the latest turn of this parity is over; turns count from 0.
  void Await(const Element& barrier, const Expr& parity, Where where = Where::current());
  // The warp groups that come to it have so many registers for each thread from here on. `more`: they wait until others have given up as many as
  // they lack.
  void Registers(std::uint32_t count, bool more, Where where = Where::current());
  void Break(Where where = Where::current());
  void Continue(Where where = Where::current());

  void If(const Expr& condition, const Body& then, const Body& otherwise = {}, Where where = Where::current());
  void While(const Expr& condition, const Body& body, Where where = Where::current());
  // Iterations in any order, by all threads; `body` takes as many indices as there are extents.
  template <class F>
  void Parallel(std::vector<Expr> extents, F&& body, Where where = Where::current()) {
    Loop(LoopKind::kParallel, std::move(extents), 0, Arity<F>(), [&body](Vars vars) { Invoke(body, vars); }, where);
  }
  void Serial(const Expr& extent, const std::function<void(Expr)>& body, Where where = Where::current());
  void Unroll(const Expr& extent, const std::function<void(Expr)>& body, Where where = Where::current());
  void Vectorized(const Expr& extent, const std::function<void(Expr)>& body, Where where = Where::current());
  // Iterations overlap: copies of later ones run while this one computes. `stages`: how many are in flight.
  void Pipelined(const Expr& extent, std::uint32_t stages, const std::function<void(Expr)>& body, Where where = Where::current());
  // As Serial, but no thread may skip it: every block runs all iterations. Blocks that share work compute from their own index which
  // part of it is theirs; that blocks stay for several tiles is inferred.
  void Persistent(const Expr& extent, const std::function<void(Expr)>& body, Where where = Where::current());

  // The serialized kiln.v1.Module; kInvalid with a diagnostic for each mistake.
  std::expected<std::string, Error> Finish() const;
  std::string Text() const;  // as `kiln` prints it
  std::vector<std::string> ParameterNames() const;

 private:
  enum class LoopKind : std::uint8_t { kSerial = 1, kUnroll, kParallel, kVectorized, kPipelined, kPersistent };

  template <class F>
  static constexpr int Arity() {
    if constexpr (std::is_invocable_v<F&, Expr>) return 1;
    else if constexpr (std::is_invocable_v<F&, Expr, Expr>) return 2;
    else if constexpr (std::is_invocable_v<F&, Expr, Expr, Expr>) return 3;
    else {
      static_assert(std::is_invocable_v<F&, Expr, Expr, Expr, Expr>, "the body takes one to four indices of type kiln::Expr");
      return 4;
    }
  }
  template <class F>
  static void Invoke(F& body, Vars v) {
    if constexpr (Arity<F>() == 1) body(v[0]);
    else if constexpr (Arity<F>() == 2) body(v[0], v[1]);
    else if constexpr (Arity<F>() == 3) body(v[0], v[1], v[2]);
    else body(v[0], v[1], v[2], v[3]);
  }

  using VarsBody = std::function<void(Vars)>;
  void LaunchVars(const LaunchOptions& options, int arity, const VarsBody& body, const Where& where);
  void Loop(LoopKind kind, std::vector<Expr> extents, std::uint32_t stages, int arity, const VarsBody& body, const Where& where);
  Tile AddTile(std::uint8_t space, std::string name, DType dtype, std::vector<std::int64_t> shape, const Where& where);
  Tile AddTensor(std::string name, DType dtype, const std::vector<Expr>& shape, const std::vector<Expr>& strides, const Where& where);

  std::unique_ptr<BuilderState> state_;
};

}  // namespace kiln
