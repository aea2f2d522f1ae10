# Helpers that every folder uses: warnings, sanitizers, a library of one folder, a test.

add_library(shard_build INTERFACE)  # How everything is compiled.
target_compile_options(shard_build INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # Clang, for the fuzzers, warns of other things.
  target_compile_options(shard_build INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms on concatenated std::strings: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105651
  target_compile_options(shard_build INTERFACE -Wno-restrict)
endif()
target_include_directories(shard_build INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
if(SHARD_SANITIZE)
  target_compile_options(shard_build INTERFACE -fsanitize=${SHARD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(shard_build INTERFACE -fsanitize=${SHARD_SANITIZE})
endif()

# shard_part(NAME SOURCES ... LIBS ...): the objects of one folder; they end up in one shared library.
function(shard_part name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_library(${name} OBJECT ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE shard_build ${arg_LIBS})
endfunction()

# shard_test(NAME SOURCES ... LIBS ... LABELS ...): one GoogleTest binary, its cases found at test time.
function(shard_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LIBS;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE shard_build ${arg_LIBS} GTest::gtest GTest::gmock GTest::gtest_main fmt::fmt)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
