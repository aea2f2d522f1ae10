# Helpers that every folder uses: warnings, sanitizers, a library of one folder, a test.

set(shard_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # Clang, which the fuzzers need, has different warnings.
  list(APPEND shard_warnings -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms on concatenated std::strings: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105651
  list(APPEND shard_warnings -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds)
endif()
add_library(shard_build INTERFACE)  # The options that compile everything.
target_compile_options(shard_build INTERFACE -pthread ${shard_warnings})
# If char were unsigned, bytes above 127 would sort and print differently.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(shard_build INTERFACE -fsigned-char)
endif()
if(SHARD_FUZZ)  # Also covers the libraries: without it a fuzzer sees only its own file.
  target_compile_options(shard_build INTERFACE -fsanitize=fuzzer-no-link)
endif()
# A class with a field of a local type is in only one source, regardless of the file that includes that.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(shard_build INTERFACE -Wno-subobject-linkage)
endif()
target_include_directories(shard_build INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
if(SHARD_SANITIZE)  # These builds also check assertions.
  target_compile_options(shard_build INTERFACE -UNDEBUG -fsanitize=${SHARD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(shard_build INTERFACE -fsanitize=${SHARD_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # The same false alarms once more, with calls of the sanitizer in between.
    target_compile_options(shard_build INTERFACE -Wno-stringop-overread)
  endif()
  if(SHARD_SANITIZE_PLUGINS)  # vptr needs type names that LibTorch hides; g++ 12 warns of optionals in its headers.
    target_compile_options(shard_build INTERFACE -fno-sanitize=vptr -Wno-maybe-uninitialized)
  endif()
endif()

if(SHARD_ONE_FILE)  # Code that several programs would share is inside the one.
  set(shard_library_type STATIC)
else()
  set(shard_library_type SHARED)
endif()

# shard_headers(NAME HEADERS ... LIBS ... [OPTIONS ...]): headers that are compiled once, with OPTIONS, for the targets that
# call shard_use_headers(TARGET NAME), which are compiled with the same options.
function(shard_headers name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;LIBS;OPTIONS")
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled/source.cpp)
  target_link_libraries(${name} PRIVATE shard_build ${arg_LIBS})
  target_compile_options(${name} PRIVATE ${shard_precompiled_options} ${arg_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
endfunction()
function(shard_use_headers target name)
  get_target_property(options ${name} COMPILE_OPTIONS)
  if(options)
    target_compile_options(${target} PRIVATE ${options})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${name})
endfunction()

if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # Programs as libraries, for the same headers; ccache requires the other option.
  set(shard_precompiled_options -fPIC -fpch-preprocess)
endif()
set(shard_test_options -O0)  # Tests are long and run once: half the time to compile of -O1.
shard_headers(shard_common_headers HEADERS ${PROJECT_SOURCE_DIR}/cmake/precompiled/common.h LIBS fmt::fmt)
# For loops over bytes and elements, which are fast in every preset.
shard_headers(shard_inner_loop_headers HEADERS ${PROJECT_SOURCE_DIR}/cmake/precompiled/common.h LIBS fmt::fmt OPTIONS -O3)
if(SHARD_TESTS)
  shard_headers(shard_test_headers HEADERS ${PROJECT_SOURCE_DIR}/cmake/precompiled/tests.h
                LIBS GTest::gtest GTest::gmock fmt::fmt OPTIONS ${shard_test_options})
endif()

# shard_part(NAME SOURCES ... LIBS ... [HEADERS NAME]): the objects of one folder; they end up in one shared library.
function(shard_part name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HEADERS" "SOURCES;LIBS")
  add_library(${name} OBJECT ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE shard_build ${arg_LIBS})
  if(NOT arg_HEADERS)
    set(arg_HEADERS shard_common_headers)
    target_link_libraries(${name} PRIVATE fmt::fmt)
  endif()
  shard_use_headers(${name} ${arg_HEADERS})
endfunction()

# shard_test(NAME SOURCES ... LIBS ... LABELS ... [MAIN LIB] [HEADERS NAME]): one GoogleTest binary, its cases found at
# test time. MAIN replaces GoogleTest's main, HEADERS the precompiled headers, which have shard_test_options. Helpers of
# its sources need different names, because a unity build compiles several sources together.
function(shard_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MAIN;HEADERS" "SOURCES;LIBS;LABELS")
  if(NOT arg_MAIN)
    set(arg_MAIN GTest::gtest_main)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE shard_build ${arg_LIBS} ${arg_MAIN} GTest::gtest GTest::gmock fmt::fmt)
  if(NOT arg_HEADERS)
    set(arg_HEADERS shard_test_headers)
  endif()
  shard_use_headers(${name} ${arg_HEADERS})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}")
endfunction()

# shard_plugin(NAME SOURCES ... LIBS ...): a library that is opened on demand (libshard/ranks/plugin.h). It contains the
# parts of libshard that it uses, so it works with any program: one with libshard.so, and the one-file program.
function(shard_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_library(${name} MODULE ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE shard_build shard_archive ${arg_LIBS})
  target_link_options(${name} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin_symbols.map -Wl,--as-needed -Wl,--gc-sections)
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/plugin_symbols.map)
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/libshard INSTALL_RPATH "$ORIGIN"
                                           INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS ${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libraries)
  add_dependencies(plugins ${name})
endfunction()
add_custom_target(plugins)  # All of them, if CMake found their dependencies.
