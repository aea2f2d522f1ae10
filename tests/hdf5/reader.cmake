shard_test(hdf5_reader_test
  SOURCES datatype_test.cpp link_names_test.cpp placed_dataset_test.cpp keras_index_test.cpp
  LIBS shard_hdf5_chunks shard_hdf5_parser_client shard_hdf5_parts shard_test_support shard_formats libshard LABELS core)
