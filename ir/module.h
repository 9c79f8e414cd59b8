// SPDX-License-Identifier: Apache-2.0
//
// A tile function: parameters, and the kernels it launches in order. Plain values; a copy is independent.
//
// Meaning. A kernel's body runs once for each block of the grid, by all its threads together: a tile operation is one step of the block.
// Each statement sees the effects of those before it, whatever threads did them; waits and barriers are the compiler's business, but for those
// that the program pins between threads of different branches (Arrive in ir/op.h). Loads
// outside a global buffer's shape give the pad value, stores there do nothing; an index outside a shared, fragment or local buffer is an
// error of the program. Two accesses race, and the result is unspecified, if two iterations of a parallel loop or two blocks touch one
// element (of 4 bits: a byte of a tensor), at least one of them writes it, and not both are Atomic. If a kernel writes a tensor, it does not
// overlap that of another parameter, unless both are `may_alias`. Fragments and locals start with unspecified values; so does shared memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/expr/expr.h"
#include "ir/layout.h"
#include "ir/type.h"

namespace kiln::ir {

enum class VarKind : uint8_t { kSymbol = 1, kScalar = 2, kBlock = 3, kThread = 4, kLoop = 5, kLet = 6 };

struct Var {
  VarKind kind;
  DType dtype;
  uint8_t axis = 0;  // kBlock: 0 is x
  std::string name;  // never part of a key; unique in text form
};

// What a tensor that a pass made is a view of: of another tensor, a parameter, from its first element on. The launcher checks that the view's
// elements lie in that tensor's, and that each of `positive` is 1 or more.
struct View {
  BufferId of;
  std::vector<ExprId> positive;
};

struct Buffer {
  Space space;
  DType dtype;
  std::vector<ExprId> shape;
  std::vector<ExprId> strides;  // elements; empty: row-major
  bool workspace = false;
  std::optional<double> pad_value;
  bool may_alias = false;          // of a tensor: it may overlap the others that say so
  std::vector<uint32_t> arrivals;  // of the program's barriers: how many threads arrive in a turn of each (Arrive)
  std::string name;

  // Decided by the passes.
  std::optional<Layout> layout;          // fragments: (thread, register); shared: address in elements + swizzle
  std::optional<int64_t> shared_offset;  // bytes in the block's shared memory
  uint32_t versions = 1;                 // the outermost dimension selects one of them, if there are several
  std::optional<View> view;              // of a tensor that is no parameter: its shape and strides may depend on scalars, too
};

struct Stmt;  // ir/op.h
using Block = std::vector<Stmt>;

// A decision of a pass that the program does not show, for the report. It belongs neither to the program's text nor to its wire form or its
// key.
struct Decision {
  std::string_view pass;
  std::optional<BufferId> subject;  // none: the kernel
  std::string text, reason;
  SourceLoc loc;
};

struct Kernel {
  std::vector<ExprId> grid;
  std::vector<uint32_t> cluster;
  uint32_t threads = 128;
  std::vector<VarId> block_vars;
  uint32_t raster_panel = 0;
  uint32_t min_blocks = 0;  // on a multiprocessor, for which registers are kept few enough; 0: as the backend likes
  Block body;
  std::string name;
  int64_t shared_bytes = 0;   // decided
  uint32_t producers = 0;     // decided: further threads, after the kernel's own, that do nothing but fill rings
  uint32_t tried_blocks = 0;  // decided: more than min_blocks, which an assembler tries; it keeps them where nothing spills
  std::vector<Decision> decisions;

  uint32_t ClusterBlocks() const;

  // Written in module.cc, so that users of a module need not include the definitions of statements.
  Kernel();
  Kernel(const Kernel&);
  Kernel(Kernel&&) noexcept;
  Kernel& operator=(const Kernel&);
  Kernel& operator=(Kernel&&) noexcept;
  ~Kernel();
};

enum class Language : uint8_t { kLlvm = 1, kPtx = 2 };
// A function in another language, which threads call (Call in ir/op.h). `text` is that of a whole module, in which it is called `symbol`.
struct Function {
  Language language = Language::kLlvm;
  std::string symbol;
  std::string text;
};

using Param = std::variant<BufferId, VarId>;  // tensor or scalar

struct Module {
  std::vector<Param> params;
  std::vector<uint32_t> outputs;  // indices of params
  std::vector<Var> vars;
  std::vector<Buffer> buffers;
  ExprPool exprs;
  std::vector<Function> functions;
  std::vector<Kernel> kernels;
  std::string name;
  std::vector<std::string> files;

  Var& operator[](VarId id) { return vars[Index(id)]; }
  const Var& operator[](VarId id) const { return vars[Index(id)]; }
  Buffer& operator[](BufferId id) { return buffers[Index(id)]; }
  const Buffer& operator[](BufferId id) const { return buffers[Index(id)]; }
  const Function& operator[](FunctionId id) const { return functions[Index(id)]; }

  VarId AddVar(Var var);
  BufferId AddBuffer(Buffer buffer);
  ExprId VarRef(VarId id) { return exprs.Var(id, vars[Index(id)].dtype); }
  // Constant shape of a buffer, nullopt where a dimension is symbolic.
  std::optional<std::vector<int64_t>> ConstShape(BufferId id) const;
  std::vector<int64_t> ShapeOf(BufferId id) const;  // of a buffer outside global memory, which the verifier made constant
  // The tensor that a view is of; another buffer itself.
  BufferId RootOf(BufferId id) const { return (*this)[id].view ? (*this)[id].view->of : id; }
};

}  // namespace kiln::ir
