foreach(name deepspeed_reader deepspeed_rewrite deepspeed_join)
  shard_test(${name}_test SOURCES ${name}_test.cpp LIBS shard_test_support shard_formats libshard LABELS core)
  target_compile_definitions(${name}_test PRIVATE SHARD_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
endforeach()
