shard_test(strided_copy_test SOURCES strided_copy_test.cpp transpose_test.cpp LIBS libshard LABELS core)
shard_test(cast_test SOURCES cast_test.cpp LIBS libshard LABELS core)

# Compared with torch by tests/live/cast_against_torch.py.
add_executable(cast_driver cast_driver.cpp)
target_link_libraries(cast_driver PRIVATE shard_build libshard fmt::fmt)
shard_use_headers(cast_driver shard_common_headers)
