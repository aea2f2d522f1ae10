shard_test(hub_index_test SOURCES hub_index_test.cpp LIBS shard_test_support shard_formats libshard LABELS core)
