shard_test(dcp_hf_test SOURCES dcp_hf_reader_test.cpp dcp_hf_damage_test.cpp dcp_hf_writer_test.cpp
  LIBS shard_test_support shard_formats libshard LABELS core)
