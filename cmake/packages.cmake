# Every library that shardctl links; found, never downloaded. scripts/setup core installs them.
find_package(Threads REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(ZLIB 1.2.12 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(re2 REQUIRED IMPORTED_TARGET re2)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(simdjson REQUIRED IMPORTED_TARGET simdjson)
pkg_check_modules(isal REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(yaml REQUIRED IMPORTED_TARGET yaml-0.1)
if(SHARD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(SHARD_BENCH)
  find_package(benchmark REQUIRED)
endif()

# For plug-ins; a plug-in without its library is not built. The libraries were built without sanitizers, which see only
# our side.
if(SHARD_PLUGINS AND (NOT SHARD_SANITIZE OR SHARD_SANITIZE_PLUGINS))
  find_package(MPI COMPONENTS C)
  # The first and the last version that the library was built and tested with.
  set(SHARD_LIBTORCH_VERSIONS 2.11...<2.16)
  if(LibTorch_ROOT OR DEFINED ENV{LibTorch_ROOT})
    find_package(LibTorch ${SHARD_LIBTORCH_VERSIONS} REQUIRED)
  else()
    find_package(LibTorch ${SHARD_LIBTORCH_VERSIONS})
  endif()
endif()
# For the plug-in that reads and writes HDF5; not built if libhdf5 or libseccomp is missing.
pkg_check_modules(hdf5 IMPORTED_TARGET hdf5-serial)
pkg_check_modules(seccomp IMPORTED_TARGET libseccomp)
# For the plug-in that reads URLs.
pkg_check_modules(curl IMPORTED_TARGET libcurl>=7.85)
pkg_check_modules(pugixml IMPORTED_TARGET pugixml)
if(NOT curl_FOUND OR NOT pugixml_FOUND)
  message(STATUS "libshard_stores.so is not built, because libcurl 7.85 or pugixml was not found; shardctl will refuse URLs")
endif()
# For the Python module's extension; not built if nanobind or the headers of Python are missing. With a sanitizer, it needs
# a Python that loads the sanitizer's library first, and the one-file program is built for no Python: only if one is named.
if(SHARD_MODULE_PYTHON OR (NOT SHARD_SANITIZE AND NOT SHARD_FUZZ AND NOT SHARD_ONE_FILE))
  include(${CMAKE_CURRENT_LIST_DIR}/python.cmake)
endif()
