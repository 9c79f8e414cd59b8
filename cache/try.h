// SPDX-License-Identifier: Apache-2.0
//
// For implementation files only: a public header that includes this would push the macros onto everybody.
#pragma once

#include <expected>
#include <utility>

// Leaves the function with the error of `expression` if it has one.
#define KILN_RETURN_IF_ERROR(expression)                       \
  do {                                                         \
    if (auto kiln_outcome = (expression); !kiln_outcome) {     \
      return std::unexpected(std::move(kiln_outcome.error())); \
    }                                                          \
  } while (false)

// KILN_ASSIGN_OR_RETURN(auto row, query.Step()): the value, or leaves the function with the error.
#define KILN_ASSIGN_OR_RETURN(declaration, expression) KILN_ASSIGN_OR_RETURN_(KILN_JOIN_(kiln_outcome_, __LINE__), declaration, expression)
#define KILN_ASSIGN_OR_RETURN_(outcome, declaration, expression)    \
  auto outcome = (expression);                                      \
  if (!outcome) return std::unexpected(std::move(outcome.error())); \
  declaration = std::move(*outcome)
#define KILN_JOIN_(a, b) KILN_JOIN_AGAIN_(a, b)
#define KILN_JOIN_AGAIN_(a, b) a##b
