# CUDA for the plug-in libshard_cuda.so: SHARD_CUDA makes its absence an error.
#
#   out: SHARD_HAS_CUDA                          the language CUDA and TARGET CUDA::cudart_static
#        SHARD_NCCL_INCLUDE_DIR, SHARD_NCCL_LIBRARY   empty: links between GPUs are not built
set(SHARD_CUDA AUTO CACHE STRING "The plug-in for GPUs: AUTO (where CUDA is found), ON or OFF")
set_property(CACHE SHARD_CUDA PROPERTY STRINGS AUTO ON OFF)
if(SHARD_CUDA STREQUAL OFF OR SHARD_SANITIZE)  # nvcc knows no sanitizers of the host.
  message(STATUS "libshard_cuda.so is not built: SHARD_CUDA is OFF, or sanitizers are on")
  return()
endif()
find_package(CUDAToolkit 12 QUIET)
# Searches lib for the toolkit's libraries, as in PyPI's wheels.
if(CUDAToolkit_FOUND AND NOT TARGET CUDA::cudart_static)
  find_library(cudart_static cudart_static HINTS ${CUDAToolkit_INCLUDE_DIRS}/../lib NO_CACHE)
  if(cudart_static)
    add_library(CUDA::cudart_static STATIC IMPORTED)
    set_target_properties(CUDA::cudart_static PROPERTIES IMPORTED_LOCATION ${cudart_static}
      INTERFACE_INCLUDE_DIRECTORIES "${CUDAToolkit_INCLUDE_DIRS}" INTERFACE_LINK_LIBRARIES "rt;pthread;dl")
  endif()
endif()
if(TARGET CUDA::cudart_static AND CUDAToolkit_NVCC_EXECUTABLE)
  set(SHARD_HAS_CUDA TRUE)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE} CACHE FILEPATH "nvcc")
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # Code for A100 and H100; later ones compile the PTX of 90.
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20, the standard of all targets.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  find_path(SHARD_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${LibTorch_NCCL_INCLUDE_DIR})
  find_library(SHARD_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_INCLUDE_DIRS}/../lib)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}: libshard_cuda.so is built")
elseif(SHARD_CUDA STREQUAL ON)
  message(FATAL_ERROR "SHARD_CUDA is ON and CUDA was not found (CUDAToolkit_ROOT says where it is)")
else()
  message(STATUS "CUDA was not found: libshard_cuda.so is not built, and shardctl will refuse --device cuda")
endif()
