add_library(toy_formats MODULE toy_formats.cpp)
target_link_libraries(toy_formats PRIVATE shard_build shard_formats libshard)
shard_test(plugins_test SOURCES plugins_test.cpp LIBS shard_test_support shard_formats libshard LABELS core)
target_compile_definitions(plugins_test PRIVATE SHARD_TOY_FORMATS="$<TARGET_FILE:toy_formats>"
                                                SHARD_OTHER_LIBRARY="$<TARGET_FILE:libshard>")
add_dependencies(plugins_test toy_formats)
shard_test(finder_test SOURCES finder_test.cpp LIBS shard_test_support shard_formats libshard LABELS core)
target_compile_definitions(finder_test PRIVATE SHARD_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
