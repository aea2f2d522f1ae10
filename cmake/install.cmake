# Rules of `cmake --install`: the tool with its man pages and completions, the shared libraries, headers, and the
# package libshard. Components, which are packages of a distribution: program, libraries (with plug-ins), development.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/libshard)

# install_libraries(EXPORT FILE TARGETS...): a part of the package, with a separate file of targets.
function(install_libraries export file)
  foreach(library ${ARGN})
    target_include_directories(${library} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                                    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
    target_compile_features(${library} INTERFACE cxx_std_20)
  endforeach()
  install(TARGETS ${ARGN} EXPORT ${export}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libraries NAMELINK_COMPONENT development)
  install(EXPORT ${export} NAMESPACE libshard:: DESTINATION ${package} FILE ${file} COMPONENT development)
endfunction()

set_target_properties(libshard PROPERTIES EXPORT_NAME libshard)
set_target_properties(shard_formats PROPERTIES EXPORT_NAME formats INSTALL_RPATH "$ORIGIN")
set_target_properties(shardctl PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
install_libraries(libshard libshardTargets.cmake libshard shard_formats)
if(TARGET shard_torch)
  set_target_properties(shard_torch PROPERTIES EXPORT_NAME torch)
  set_target_properties(shard_rpc PROPERTIES EXPORT_NAME rpc)
  install_libraries(libshardTorch libshardTorchTargets.cmake shard_torch shard_rpc)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake DESTINATION ${package} COMPONENT development)
  cmake_path(GET LibTorch_INCLUDE_DIR PARENT_PATH SHARD_LIBTORCH_ROOT)
endif()
install(TARGETS shardctl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
if(TARGET shardctl_share)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/apps/shardctl/share/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT program)
endif()
install(CODE "set(SOURCE \"${PROJECT_SOURCE_DIR}\")
              set(DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")
              include(\"${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake\")"
        COMPONENT development)
configure_package_config_file(cmake/libshardConfig.cmake.in ${PROJECT_BINARY_DIR}/libshardConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/libshardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/libshardConfig.cmake ${PROJECT_BINARY_DIR}/libshardConfigVersion.cmake
        DESTINATION ${package} COMPONENT development)
