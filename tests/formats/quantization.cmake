shard_test(quantization_test SOURCES quantization_test.cpp LIBS shard_formats libshard LABELS core)
