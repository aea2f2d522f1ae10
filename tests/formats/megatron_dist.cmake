shard_test(megatron_dist_test SOURCES megatron_dist_test.cpp LIBS shard_test_support shard_formats libshard LABELS core)
target_compile_definitions(megatron_dist_test PRIVATE SHARD_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
