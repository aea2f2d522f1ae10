shard_test(hf_index_test SOURCES hf_index_test.cpp LIBS shard_test_support shard_formats libshard LABELS core)
shard_test(folder_names_test SOURCES folder_names_test.cpp LIBS shard_formats libshard LABELS core)
