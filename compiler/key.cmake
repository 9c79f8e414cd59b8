# SPDX-License-Identifier: Apache-2.0
# kiln_key and the build id it needs: a digest of the sources that can change an artifact and of LLVM's version. It is computed at
# each build, from paths relative to the tree and contents alone, so that two builds of one tree in different folders agree.
find_program(KILN_LLVM_CONFIG NAMES llvm-config-22 HINTS /usr/lib/llvm-22/bin REQUIRED)
set(build_id_header ${CMAKE_BINARY_DIR}/generated/compiler/build_id.h)
add_custom_target(kiln_build_id
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUTPUT=${build_id_header} -DLLVM_CONFIG=${KILN_LLVM_CONFIG}
          -P ${CMAKE_CURRENT_LIST_DIR}/build_id.cmake
  BYPRODUCTS ${build_id_header} VERBATIM)

kiln_library(key SOURCES key.cc DEPS kiln_ir kiln_proto PRIVATE_DEPS kiln_cache)
add_dependencies(kiln_key kiln_build_id)
target_include_directories(kiln_key PRIVATE ${CMAKE_BINARY_DIR}/generated)
kiln_test(key_test SOURCES key_test.cc DEPS kiln_key kiln_ir)
