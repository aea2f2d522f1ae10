# What `cmake --install` puts down: the tool, two shared libraries, headers, and the package libshard.
include(CMakePackageConfigHelpers)

foreach(library libshard shard_formats)
  target_include_directories(${library} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                                  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_features(${library} INTERFACE cxx_std_20)
endforeach()
set_target_properties(libshard PROPERTIES EXPORT_NAME libshard)
set_target_properties(shard_formats PROPERTIES EXPORT_NAME formats INSTALL_RPATH "$ORIGIN")
set_target_properties(shardctl PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")

install(TARGETS shardctl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS libshard shard_formats EXPORT libshard LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY libshard formats DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT libshard NAMESPACE libshard:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/libshard
        FILE libshardTargets.cmake)
file(WRITE ${PROJECT_BINARY_DIR}/libshardConfig.cmake "include(\${CMAKE_CURRENT_LIST_DIR}/libshardTargets.cmake)\n")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/libshardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/libshardConfig.cmake ${PROJECT_BINARY_DIR}/libshardConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/libshard)
