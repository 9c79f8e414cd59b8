// SPDX-License-Identifier: Apache-2.0
//
// State that the writers of the op families (grammar/ops) share: the random numbers, what is in scope, and the place of the next statement.
#pragma once

#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/grammar/grammar.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::ir::grammar {

template <typename T>
struct Tag {};

// An integer that statements may name: 0 ≤ value < bound; bound 0: it may be anything.
struct Count {
  ExprId value;
  int64_t bound;
};

// Where the next statement stands.
struct Place {
  int depth = 0;              // statements around it
  bool parallel = false;      // within a parallel or vectorized loop: single elements only
  bool some_threads = false;  // not all threads of the block get here
  bool in_loop = false;       // break and continue may stand here
};

struct Scope {
  std::vector<Count> counts;
  std::vector<VarId> values;  // scalars and lets of any type
  std::vector<BufferId> buffers;
};

// How many entities of each kind a module gets.
struct Sizes {
  int statements = 8;       // of a kernel, about
  int depth = 3;            // statements within statements
  int64_t elements = 4096;  // of a tile
  int expression = 3;       // depth
  bool flat = false;        // few forms, one after the other
  bool products = false;    // kernels begin with a pipelined product
};

class Writer {
 public:
  Writer(uint64_t seed, const Options& options) : options_(options), random_(seed), signals_(options.odd && seed % 13 == 5) {}
  Module Make();

  // --- chance ---
  int64_t Below(int64_t n) { return n <= 0 ? 0 : int64_t(random_() % uint64_t(n)); }
  bool Coin() { return Below(2) == 0; }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  bool Odd(int64_t n) { return OneIn(n) && options_.odd; }
  template <typename T>
  const T& Pick(const std::vector<T>& values) {
    return values[size_t(Below(int64_t(values.size())))];
  }
  std::string Name();
  DType Number();   // any type but bool
  DType AnyType();  // of all in dtypes.def
  double FloatValue();

  // --- expressions (expr.cc) ---
  ExprId Value(DType type, int depth);
  ExprId Value(DType type) { return Value(type, int(Below(sizes_.expression + 1))); }
  ExprId Condition(int depth);
  // A condition that is mostly the same for all threads; also returns whether it is.
  std::pair<ExprId, bool> Branch();
  // An index that is mostly inside [0, extent).
  ExprId Index(int64_t extent);
  // An integer that the launcher can compute.
  ExprId HostValue();
  // The same for all threads.
  ExprId UniformCount();
  bool DiffersByThread(ExprId id) const;

  // --- buffers and regions (shapes.cc) ---
  int64_t Extent();
  std::vector<int64_t> Shape(size_t rank, int64_t most);
  BufferId AddTile(Space space, DType type, const std::vector<int64_t>& shape);
  BufferId AddTile(Space space, const std::vector<int64_t>& shape);  // of some type
  Ring AddRing();
  BufferId AddBarriers();                                    // of the program
  static bool HasLayout(const std::vector<int64_t>& shape);  // a layout says where elements are, of which there are some
  Layout SomeLayout(const std::vector<int64_t>& shape) { return Layout::Distributed(shape, 32, 1); }
  std::vector<ExprId> Indices(BufferId buffer);
  // Elements of its own for each iteration of the parallel loop around, where the buffer has that many.
  std::vector<ExprId> OwnIndices(BufferId buffer);
  bool HasElements(BufferId buffer) const;
  // A buffer with elements that one statement may name; makes one if there is none.
  BufferId ElementBuffer();
  Region Whole(BufferId buffer);
  Region Part(BufferId buffer);
  // A region of these extents, with further dimensions of extent 1; nullopt if the buffer has none.
  std::optional<Region> Fitting(BufferId buffer, const std::vector<int64_t>& extents);
  // The same of some buffer, a new tile where none has one.
  Region Fitting(const std::vector<int64_t>& extents, const std::vector<Space>& spaces);
  BufferId SomeBuffer() { return Pick(scope.buffers); }
  std::optional<int64_t> ConstExtent(BufferId buffer, size_t dim) const { return module.exprs.ConstInt(module[buffer].shape[dim]); }

  // --- statements (writer.cc) ---
  Block Statements(int count);
  Block Nested(const Place& place);
  void Put(Op op) { block_->push_back({std::move(op), {}}); }
  VarId Loop(int64_t bound, DType type = DType::kI32);  // its variable, in scope
  // How often an operation of the whole block occurs here. Sometimes also where it is not allowed, to test the refusal.
  int Together(int weight) const { return place.parallel ? 0 : place.some_threads ? weight / 8 : weight; }
  bool decisions() const { return options_.decisions; }
  bool signals() const { return signals_; }  // few modules have barriers of their own, for many targets refuse these
  // At a block of the cluster, where the kernel has one.
  std::optional<ExprId> Rank() { return cluster_ > 0 && signals() && OneIn(2) ? std::optional(Index(cluster_)) : std::nullopt; }
  bool has_cluster() const { return cluster_ > 0; }
  const Sizes& sizes() const { return sizes_; }
  uint32_t threads() const { return threads_; }

  Module module;
  Place place;
  Scope scope;
  std::vector<std::pair<VarId, int64_t>> own;  // variables of the parallel loop around, and their extents
  std::optional<BufferId> written;             // by the parallel loop around: reading another of its elements is a conflict
  std::set<VarId> differing;                   // lets whose value is not the same for all threads

 private:
  void ChooseSizes();
  void AddSymbols();
  void AddTensors();
  void AddScalars();
  void AddWorkspaces();
  BufferId AddTensor(bool workspace);
  ExprId TensorExtent();
  void AddKernel();
  void AddGrid(Kernel& kernel);
  void AddThreads(Kernel& kernel);
  Op Statement();

  ExprId Leaf(DType type);
  ExprId Constant(DType type);
  ExprId Operation(DType type, int depth);
  ExprId Element(DType type, int depth);
  ExprId Made(ExprOp op, DType type, std::initializer_list<ExprId> args);
  ExprId Varied(const Count& count, int64_t extent);

  const Options options_;
  std::mt19937_64 random_;
  const bool signals_;
  Sizes sizes_;
  std::vector<VarId> symbols_;
  std::optional<VarId> thread_;
  uint32_t threads_ = 128;
  int64_t cluster_ = 0;       // blocks; 0: the kernel asks for none
  int left_ = 0;              // statements that the kernel may still have
  int64_t shared_bytes_ = 0;  // of the kernel's tiles so far
  Block* block_ = nullptr;    // being filled; allocs go before what uses them
};

// For each op, in the file of its family: how often it occurs at such a place, and a function that writes one. A missing one is a link
// error. One of the family elementwise needs neither (ops/elementwise.h).
#define KILN_OP(number, type, name, family, since) \
  int Weight(const Writer& writer, Tag<type>);     \
  Op Write(Writer& writer, Tag<type>);
#include "ir/ops.def"

// A pipelined loop that loads two tiles and multiplies them, as most kernels have.
Op WriteProductLoop(Writer& writer);

}  // namespace kiln::ir::grammar
