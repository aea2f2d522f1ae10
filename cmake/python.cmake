# Python::Module and nanobind, for the extension shardctl._native.
set(module_python ${SHARD_MODULE_PYTHON})
if(NOT module_python AND EXISTS ${SHARD_PYTHON})
  set(module_python ${SHARD_PYTHON})
endif()
if(module_python)
  set(Python_EXECUTABLE ${module_python})
  # A toolchain's settings hide the headers of this machine from find_package, and the name of the ABI. nanobind takes that
  # from scikit-build's variable: it shows whether Python is free-threaded.
  execute_process(COMMAND ${module_python} -c "import sysconfig; print(sysconfig.get_path('include'))"
                  OUTPUT_VARIABLE Python_INCLUDE_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND ${module_python} -c "import sysconfig; print(sysconfig.get_config_var('SOABI'))"
                  OUTPUT_VARIABLE SKBUILD_SOABI OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
find_package(Python 3.10 COMPONENTS Interpreter Development.Module)
if(Python_Development.Module_FOUND)
  cmake_path(GET SHARD_PYTHON PARENT_PATH folder)
  find_package(nanobind CONFIG QUIET HINTS ${folder}/../nanobind/nanobind/cmake NO_CMAKE_FIND_ROOT_PATH)
endif()
if(NOT nanobind_FOUND)
  message(STATUS "shardctl._native is not built: it needs the headers of Python 3.10 or later and nanobind (scripts/setup clients)")
endif()
# nanobind asks for this target, which CMake knows from 3.26 on, before it uses the stable ABI. It only has the headers.
if(NOT TARGET Python::SABIModule)
  add_library(Python::SABIModule INTERFACE IMPORTED)
endif()
