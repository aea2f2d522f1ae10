# The writer of HDF5, and the objects and trees in a file.
shard_test(hdf5_values_test
  SOURCES values_test.cpp tree_test.cpp
  LIBS shard_hdf5_chunks shard_hdf5_parser_client shard_hdf5_parts shard_test_support shard_formats libshard ZLIB::ZLIB PkgConfig::isal LABELS core)
shard_test(hdf5_writer_test
  SOURCES image_test.cpp writer_test.cpp
  LIBS shard_hdf5_chunks shard_hdf5_parser_client shard_hdf5_parts shard_hdf5_library shard_hdf5_writing shard_test_support shard_formats libshard
       ZLIB::ZLIB PkgConfig::isal PkgConfig::hdf5
  LABELS core)
add_dependencies(hdf5_writer_test shard_hdf5)
