shard_test(safetensors_test
  SOURCES safetensors_header_test.cpp safetensors_reader_test.cpp safetensors_writer_test.cpp registry_test.cpp
  LIBS shard_memory_disk shard_formats libshard LABELS core)
