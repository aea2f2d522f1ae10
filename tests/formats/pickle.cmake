shard_test(pickle_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/pickle_load_test.cpp ${CMAKE_CURRENT_LIST_DIR}/pickle_hostile_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/pickle_dump_test.cpp ${CMAKE_CURRENT_LIST_DIR}/pickle_recording_test.cpp ${CMAKE_CURRENT_LIST_DIR}/tensor_pickle_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/numpy_values_test.cpp ${CMAKE_CURRENT_LIST_DIR}/pickle_classes_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/pickle_equal_test.cpp ${CMAKE_CURRENT_LIST_DIR}/pickle_attributes_test.cpp
  LIBS shard_formats libshard LABELS core)
target_compile_definitions(pickle_test PRIVATE SHARD_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")

add_executable(pickle_driver ${CMAKE_CURRENT_LIST_DIR}/pickle_driver.cpp)
target_link_libraries(pickle_driver PRIVATE shard_build shard_formats libshard fmt::fmt)
shard_use_headers(pickle_driver shard_common_headers)
