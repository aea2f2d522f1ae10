shard_test(dcp_test SOURCES dcp_reader_test.cpp dcp_damage_test.cpp dcp_misplaced_items_test.cpp dcp_special_test.cpp dcp_writer_test.cpp
  LIBS shard_test_support shard_formats libshard nlohmann_json::nlohmann_json PkgConfig::zstd LABELS core)
target_compile_definitions(dcp_test PRIVATE SHARD_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
