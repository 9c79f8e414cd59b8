# SPDX-License-Identifier: Apache-2.0
kiln_library(canonicalize SOURCES canonicalize.cc degenerate.cc infer/versions.cc DEPS kiln_ir kiln_target kiln_proto)
kiln_test(canonicalize_test SOURCES canonicalize_test.cc DEPS kiln_canonicalize ir_random_module)
