shard_test(quantization_test SOURCES quantization_test.cpp LIBS shard_memory_disk shard_formats libshard LABELS core)
