// SPDX-License-Identifier: Apache-2.0
//
// What the analysis says that each op reads and writes (compiler/analysis/access.h), against what it touches when it runs. Buffers are larger
// than what the ops say they touch; elements are changed before a run, and looked at after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ranges>
#include <set>

#include "compiler/analysis/access.h"
#include "ir/text/print.h"
#include "ir/visit.h"
#include "tests/emulator/ops/program.h"
#include "tests/emulator/ops/run.h"

namespace kiln::emulator::testing {
namespace {

// Which elements of each buffer of a row: of %X and %Y, and of its tiles, where one follows the other for each block.
using Elements = std::map<std::string, std::vector<bool>>;
struct Touched {
  Elements read, written;
};

// Goes through the statements of a row, whose loops have constant extents but for those that no index depends on.
class Collector {
 public:
  explicit Collector(const Row& row) : row_(row), module_(Parsed(TextOf(row))) {
    for (const std::string& name : BuffersOf(row)) {
      for (Elements* elements : {&touched_.read, &touched_.written}) (*elements)[name].resize(Count(module_.ShapeOf(Find(name))) * Blocks(name));
    }
  }

  Touched Collect() {
    const ir::Block& body = module_.kernels[0].body;
    auto at = std::ranges::find_if(body, [&](const ir::Stmt& stmt) { return std::holds_alternative<ir::Let>(stmt.op); });
    for (; at != body.end() && !IsCopyOut(*at); ++at) Visit(*at);
    return touched_;
  }

 private:
  static size_t Count(const std::vector<int64_t>& shape) {
    size_t count = 1;
    for (int64_t extent : shape) count *= size_t(extent);
    return count;
  }
  size_t Blocks(const std::string& name) const { return row_.kernel == kOneBlock || name == "X" || name == "Y" ? 1 : 2; }
  ir::BufferId Find(const std::string& name) const {
    return ir::BufferId(std::ranges::find(module_.buffers, name, &ir::Buffer::name) - module_.buffers.begin());
  }
  bool IsCopyOut(const ir::Stmt& stmt) const {
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    return copy != nullptr && module_[copy->dst.buffer].name.ends_with("_out");
  }

  // A parallel loop's accesses are those of its body, too.
  void Visit(const ir::Stmt& stmt) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    const bool parallel = loop != nullptr && loop->kind == ir::LoopKind::kParallel;
    if (parallel) {
      ir::WalkWithin(stmt, [&](const ir::Stmt& inner) { Bind(inner); });
    } else {
      Bind(stmt);
    }
    for (const compiler::Access& access : compiler::AccessesOf(module_, stmt)) Add(access, HasAtomic(stmt));
    if (parallel) return;
    ir::ForEachBody(stmt.op, [&](const ir::Block& body) {
      for (const ir::Stmt& inner : body) Visit(inner);
    });
  }
  void Bind(const ir::Stmt& stmt) {
    if (const auto* let = std::get_if<ir::Let>(&stmt.op)) lets_.emplace_back(let->var, let->value);
    if (const auto* loop = std::get_if<ir::For>(&stmt.op)) {
      for (size_t i = 0; i < loop->vars.size(); ++i) loops_.emplace_back(loop->vars[i], Resolved(loop->extents[i]));
    }
  }
  // Analyses take what happens in one step for a write; it reads, too.
  static bool HasAtomic(const ir::Stmt& stmt) {
    bool has = false;
    ir::WalkWithin(stmt, [&](const ir::Stmt& inner) { has |= std::holds_alternative<ir::Atomic>(inner.op); });
    return has;
  }

  ir::ExprId Resolved(ir::ExprId expr) {
    for (const auto& [var, value] : lets_ | std::views::reverse) expr = module_.exprs.Substitute(expr, var, value);
    return expr;
  }

  // Element by element, for all values of the loop variables.
  void Add(const compiler::Access& access, bool atomic) {
    const std::string& name = module_[access.buffer].name;
    if (!touched_.read.contains(name)) return;
    const std::vector<int64_t> shape = module_.ShapeOf(access.buffer);
    std::vector<ir::ExprId> indices = access.indices;
    indices.resize(shape.size(), module_.exprs.Int(0));
    for (ir::ExprId& index : indices) index = Resolved(index);
    std::vector<int64_t> extents = access.tile ? access.extents : std::vector<int64_t>(shape.size(), 1);
    std::set<size_t> elements;
    ForEachValue(indices, 0, [&](const std::vector<int64_t>& start) { AddTile(shape, start, extents, 0, 0, elements); });
    const size_t size = Count(shape);
    for (size_t block = 0; block < Blocks(name); ++block) {
      for (size_t element : elements) {
        if (access.write) touched_.written[name].at(block * size + element) = true;
        if (!access.write || atomic) touched_.read[name].at(block * size + element) = true;
      }
    }
  }

  void ForEachValue(const std::vector<ir::ExprId>& indices, size_t loop, const std::function<void(const std::vector<int64_t>&)>& fn) {
    if (loop == loops_.size()) {
      std::vector<int64_t> values;
      for (ir::ExprId index : indices) {
        const auto value = module_.exprs.ConstInt(index);
        if (!value) throw std::runtime_error("an index that is not constant");
        values.push_back(*value);
      }
      return fn(values);
    }
    const auto [var, extent] = loops_[loop];
    std::vector<ir::ExprId> at = indices;
    for (int64_t i = 0; i < module_.exprs.ConstInt(extent).value_or(1); ++i) {
      for (size_t d = 0; d < at.size(); ++d) at[d] = module_.exprs.Substitute(indices[d], var, module_.exprs.Int(i));
      ForEachValue(at, loop + 1, fn);
      if (at == indices) return;  // none depends on the loop
    }
  }

  static void AddTile(const std::vector<int64_t>& shape, const std::vector<int64_t>& start, const std::vector<int64_t>& extents, size_t d,
                      size_t element, std::set<size_t>& elements) {
    if (d == shape.size()) {
      elements.insert(element);
      return;
    }
    for (int64_t i = 0; i < extents[d]; ++i) AddTile(shape, start, extents, d + 1, element * size_t(shape[d]) + size_t(start[d] + i), elements);
  }

  const Row& row_;
  ir::Module module_;
  Touched touched_;
  std::vector<std::pair<ir::VarId, ir::ExprId>> lets_, loops_;  // so far: values, extents
};

class AccessTest : public ::testing::TestWithParam<Row> {
 protected:
  using Change = std::function<double(const std::string&, size_t, double)>;  // of an element before the run

  static double Kept(const std::string&, size_t, double value) { return value; }

  // What the buffers hold before the statements, and after them.
  struct States {
    Tensors before, after;
  };
  States Run(Runner& runner, const Tensors& numbers, const Change& change) {
    Tensors given = numbers;
    States states;
    for (const std::string& name : BuffersOf(GetParam())) {
      std::vector<double>& values = given.at(In(name));
      for (size_t i = 0; i < values.size(); ++i) values[i] = change(name, i, values[i]);
      states.before[name] = values;
    }
    const Tensors after = runner.Run(given);
    for (const auto& [name, values] : states.before) states.after[name] = after.at(Out(name));
    return states;
  }
  static bool IsTensor(const std::string& name) { return name == "X" || name == "Y"; }
  static std::string In(const std::string& name) { return IsTensor(name) ? name : name + "_in"; }
  static std::string Out(const std::string& name) { return IsTensor(name) ? name : name + "_out"; }

  void ForEachElement(const Touched& touched, const std::function<void(const std::string&, size_t, bool read, bool written)>& fn) {
    for (const auto& [name, read] : touched.read) {
      for (size_t i = 0; i < read.size(); ++i) fn(name, i, read[i], touched.written.at(name)[i]);
    }
  }
  // Whether the block that has the element writes all that the op says.
  bool Writes(const std::string& name, size_t i, size_t elements) const {
    return GetParam().writer < 0 || IsTensor(name) || i / (elements / 2) == size_t(GetParam().writer);
  }
};
INSTANTIATE_TEST_SUITE_P(Ops, AccessTest, ::testing::ValuesIn(kRows), NameOf<Row>);

// What is only written loses what it held before. What is neither read nor written keeps what it holds, and changes nothing else.
TEST_P(AccessTest, TouchesWhatItSays) {
  const Touched touched = Collector(GetParam()).Collect();
  const ir::Module module = Parsed(TextOf(GetParam()));
  for (const std::string_view target : TargetsOf(GetParam().op, GetParam().kernel)) {
    SCOPED_TRACE(target);
    Runner runner(module, target);
    const Tensors numbers = SmallNumbers(module, 1);
    const States plain = Run(runner, numbers, Kept);
    const States lost = Run(runner, numbers, [&](const std::string& name, size_t i, double value) {
      return touched.written.at(name)[i] && !touched.read.at(name)[i] ? 77 : value;
    });
    const States around = Run(runner, numbers, [&](const std::string& name, size_t i, double value) {
      return touched.written.at(name)[i] || touched.read.at(name)[i] ? value : value + 50;
    });
    ForEachElement(touched, [&](const std::string& name, size_t i, bool, bool written) {
      const std::string element = name + " at " + std::to_string(i);
      if (!written) {
        for (const States* run : {&plain, &lost, &around}) ASSERT_EQ(run->after.at(name)[i], run->before.at(name)[i]) << element << " was written";
        return;
      }
      ASSERT_EQ(lost.after.at(name)[i], plain.after.at(name)[i]) << element << " keeps what it held, or depends on it";
      ASSERT_EQ(around.after.at(name)[i], plain.after.at(name)[i]) << element << " depends on what the op does not read";
    });
  }
}

// What is read and written changes under some of the inputs. For what is only written, the test above tells.
TEST_P(AccessTest, WritesWhatItSays) {
  Touched touched = Collector(GetParam()).Collect();
  const ir::Module module = Parsed(TextOf(GetParam()));
  Runner runner(module, TargetsOf(GetParam().op, GetParam().kernel)[0]);
  for (uint32_t seed = 1; seed < 9; ++seed) {
    const States states = Run(runner, SmallNumbers(module, seed), Kept);
    ForEachElement(touched, [&](const std::string& name, size_t i, bool, bool) {
      if (states.after.at(name)[i] != states.before.at(name)[i]) touched.written.at(name)[i] = false;
    });
  }
  ForEachElement(touched, [&](const std::string& name, size_t i, bool read, bool written) {
    const bool never = read && written && Writes(name, i, touched.read.at(name).size());
    EXPECT_FALSE(never) << name << " at " << i << " was never written";
  });
}

// Each buffer that the op is said to read makes a difference. No result depends on what an assume reads.
TEST_P(AccessTest, ReadsWhatItSays) {
  const Touched touched = Collector(GetParam()).Collect();
  const std::string_view target = TargetsOf(GetParam().op, GetParam().kernel)[0];
  const ir::Module module = Parsed(TextOf(GetParam()));
  Runner runner(module, target);
  for (const auto& [buffer, read] : touched.read) {
    if (std::ranges::count(read, true) == 0 || GetParam().op == "assume") continue;
    bool differs = false;
    for (uint32_t seed = 1; seed < 6 && !differs; ++seed) {
      const Tensors numbers = SmallNumbers(module, seed);
      const States plain = Run(runner, numbers, Kept);
      const States changed = Run(
          runner, numbers, [&](const std::string& name, size_t i, double value) { return name == buffer && read[i] ? int(value) % 4 + 1 : value; });
      ForEachElement(touched, [&](const std::string& name, size_t i, bool, bool written) {
        differs |= written && plain.after.at(name)[i] != changed.after.at(name)[i];
      });
    }
    EXPECT_TRUE(differs) << buffer;
  }
}

// What is made for rings, and waits, touch no tile.
TEST(MadeOps, AccessNothing) {
  for (const MadeRow& row : kMadeRows) {
    if (row.op == "pair_sum" || row.op == "stream_sum") continue;
    ir::Module module = Parsed(MadeTextOf("pipelined %k in 32 stages 3"));
    RunPassesUpTo(row.pass, module, row.target, OptionsOf(row));
    ir::Walk(module.kernels[0].body, [&](const ir::Stmt& stmt) {
      EXPECT_TRUE(ir::Name(stmt.op) != row.op || compiler::AccessesOf(module, stmt).empty()) << ir::PrintStmt(module, stmt);
    });
  }
}

}  // namespace
}  // namespace kiln::emulator::testing
