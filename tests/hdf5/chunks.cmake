# Chunks of HDF5 datasets, whose filters are undone.
foreach(name IN ITEMS chunk_view large_chunk chunk_grid)
  shard_test(hdf5_${name}_test SOURCES ${name}_test.cpp
             LIBS shard_hdf5_chunks shard_test_support shard_formats libshard ZLIB::ZLIB LABELS core)
  target_compile_definitions(hdf5_${name}_test PRIVATE SHARD_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
endforeach()
