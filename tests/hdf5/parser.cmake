# The parser's process and its answers.
add_library(hdf5_entry_text OBJECT entry_text.cpp)
target_link_libraries(hdf5_entry_text PRIVATE shard_build fmt::fmt)
add_executable(hdf5_describe_file describe_file.cpp)
target_link_libraries(hdf5_describe_file PRIVATE shard_build hdf5_entry_text shard_hdf5_parts shard_formats libshard fmt::fmt)
add_dependencies(hdf5_describe_file shard_hdf5_parser)
