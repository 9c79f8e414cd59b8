// SPDX-License-Identifier: Apache-2.0
//
// What iterations of the serial loops around a statement do to its accesses: which version of a rotating buffer they use, and whether
// two of them may meet in one element.
#pragma once

#include <compare>
#include <optional>
#include <set>
#include <unordered_map>

#include "compiler/analysis/access.h"
#include "compiler/analysis/digits.h"
#include "ir/op.h"
#include "ir/verify/verify.h"

namespace kiln::compiler {

// Which version of a rotating buffer an access uses: (var + offset) mod modulus, or offset alone without a variable.
struct Version {
  std::optional<ir::VarId> var;
  int64_t offset;
  int64_t modulus;
  auto operator<=>(const Version&) const = default;
};

// A buffer with more versions does not rotate here: the analysis would have to tell as many iterations apart.
constexpr int64_t kMostVersions = ir::kMaxStages;

// nullopt where the access may use any version. `loops`: the variables of the serial loops around.
std::optional<Version> VersionOf(const ir::Module& module, const Access& access, const std::set<ir::VarId>& loops);

// Whether different threads may write one element in different iterations of the loops around. They cannot if the element never changes, if
// each loop moves it in some dimension beyond what the threads and the statement's own iterations reach, or if the index determines the
// iteration.
bool MayMeetItself(const Digits& digits, const Access& access, const std::set<ir::VarId>& loops);

// Where indices begin, and by multiples of what they move in all iterations and threads (0: they do not move). Each is computed once.
class IndexSteps {
 public:
  explicit IndexSteps(const ir::ExprPool& pool) : pool_(pool) {}

  struct Steps {
    int64_t begin = 0, by = 0;
  };
  Steps Of(ir::ExprId index) const;

 private:
  const ir::ExprPool& pool_;
  mutable std::unordered_map<ir::ExprId, Steps> known_;
};

// Whether two accesses to one buffer touch different elements in all iterations and threads: in some dimension all that varies moves both by
// multiples of a number, and they begin at different remainders of it.
bool NeverMeet(const IndexSteps& indices, const Access& a, const Access& b);

}  // namespace kiln::compiler
