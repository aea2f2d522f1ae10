# CMake's toolchain of the one-file program: SHARD_ARCHITECTURE, of .cache/package/compilers.
get_filename_component(_cache ${CMAKE_CURRENT_LIST_DIR}/../../.cache/package ABSOLUTE)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SHARD_ARCHITECTURE)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${SHARD_ARCHITECTURE})
set(CMAKE_C_COMPILER ${_cache}/compilers/${SHARD_ARCHITECTURE}-cc)
set(CMAKE_CXX_COMPILER ${_cache}/compilers/${SHARD_ARCHITECTURE}-c++)
set(CMAKE_AR ${_cache}/compilers/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${_cache}/compilers/ranlib CACHE FILEPATH "")

# Links only the output of scripts/packaging/libraries.
set(CMAKE_FIND_ROOT_PATH ${_cache}/${SHARD_ARCHITECTURE}/prefix)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_FIND_ROOT_PATH}/lib/pkgconfig)

# Keeps paths of this machine out of the program, so that every machine builds the same bytes.
set(CMAKE_C_FLAGS_INIT "-ffile-prefix-map=${_cache}=. -Wno-unused-command-line-argument")
set(CMAKE_CXX_FLAGS_INIT "${CMAKE_C_FLAGS_INIT}")
