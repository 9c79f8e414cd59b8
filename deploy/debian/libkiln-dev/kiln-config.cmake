# SPDX-License-Identifier: Apache-2.0
# kiln::client: kiln::Client, kiln::Builder and kiln::Kernel. Their headers are included as in "clients/cpp/client.h".
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(OpenSSL)
find_dependency(Protobuf)
find_dependency(fmt)
find_dependency(PkgConfig)
if(NOT TARGET PkgConfig::KILN_GRPC)
  pkg_check_modules(KILN_GRPC REQUIRED IMPORTED_TARGET GLOBAL grpc++)
endif()
if(NOT TARGET kiln::client)
  # /usr/lib/ARCHITECTURE/cmake/kiln is where this file is.
  get_filename_component(kiln_lib "${CMAKE_CURRENT_LIST_DIR}/../.." REALPATH)
  get_filename_component(kiln_prefix "${kiln_lib}/../.." REALPATH)
  add_library(kiln::client STATIC IMPORTED)
  set_target_properties(kiln::client PROPERTIES
    IMPORTED_LOCATION "${kiln_lib}/libkiln.a"
    INTERFACE_INCLUDE_DIRECTORIES "${kiln_prefix}/include/kiln"
    INTERFACE_COMPILE_FEATURES cxx_std_23
    INTERFACE_LINK_LIBRARIES "PkgConfig::KILN_GRPC;protobuf::libprotobuf;fmt::fmt;OpenSSL::Crypto;Threads::Threads;${CMAKE_DL_LIBS}")
endif()
