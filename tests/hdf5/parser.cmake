# The parser's process and its answers.
add_library(hdf5_parsed_file OBJECT entry_text.cpp parsed_file.cpp)
target_link_libraries(hdf5_parsed_file PRIVATE shard_build fmt::fmt)
shard_use_headers(hdf5_parsed_file shard_common_headers)
target_compile_definitions(hdf5_parsed_file PUBLIC SHARD_HDF5_PARSER="$<TARGET_FILE:shard_hdf5_parser>"
                                                   SHARD_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
set(hdf5_parser_libs hdf5_parsed_file shard_memory_disk shard_hdf5_parser_client libshard)
foreach(name IN ITEMS reply parser parser_process parser_damage parser_made)
  shard_test(hdf5_${name}_test SOURCES ${name}_test.cpp LIBS ${hdf5_parser_libs} shard_test_support LABELS core)
  add_dependencies(hdf5_${name}_test shard_hdf5_parser)
endforeach()
target_link_libraries(hdf5_parser_made_test PRIVATE PkgConfig::hdf5)
add_executable(hdf5_describe_file describe_file.cpp)
target_link_libraries(hdf5_describe_file PRIVATE shard_build ${hdf5_parser_libs} fmt::fmt)
shard_use_headers(hdf5_describe_file shard_common_headers)
add_test(NAME hdf5_sandbox COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/sandbox.sh $<TARGET_FILE:hdf5_describe_file>
  $<TARGET_FILE:shard_hdf5_parser> ${PROJECT_SOURCE_DIR}/tests/data/hdf5/h5py37-texts.h5)
set_tests_properties(hdf5_sandbox PROPERTIES LABELS core SKIP_RETURN_CODE 77)
