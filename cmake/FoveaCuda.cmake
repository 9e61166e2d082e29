# CUDA kernels. A kernel source (.cu) is compiled for the device by nvcc (FOVEA_WITH_CUDA) and, as
# plain C++, for the emulated device (FOVEA_EMULATE_CUDA); the two live in different namespaces.

if(FOVEA_WITH_CUDA)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(FOVEA_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin)
    if(NOT FOVEA_NVCC)
      message(FATAL_ERROR "FOVEA_WITH_CUDA needs nvcc, which is neither on the path nor in "
        "/usr/local/cuda/bin; CMAKE_CUDA_COMPILER or CUDACXX may name it.")
    endif()
    set(CMAKE_CUDA_COMPILER ${FOVEA_NVCC})
  endif()
  # Code for sm_80, and PTX of it from which drivers compile for all that came later.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES 80)
  endif()
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
    message(FATAL_ERROR "FOVEA_WITH_CUDA needs nvcc 12.0 or newer, for C++20; "
      "${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}.")
  endif()
  find_package(CUDAToolkit REQUIRED)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  # CMake 3.25 does not know how nvcc is told of C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  endif()
endif()

# What code that launches kernels is compiled with.
add_library(fovea_cuda_build INTERFACE)
target_compile_definitions(fovea_cuda_build INTERFACE
  FOVEA_CUDA_REAL=$<BOOL:${FOVEA_WITH_CUDA}> FOVEA_CUDA_EMULATED=$<BOOL:${FOVEA_EMULATE_CUDA}>)

# fovea_cuda_kernels(<name> <objects> <source>...): compiles kernel sources, named as seen from the
# current folder, for every world that is built. <objects> is the variable that receives their
# object files. Sources named sm90_* use what only sm_90a has, and are compiled for that alone.
function(fovea_cuda_kernels name objects)
  set(result "")
  if(FOVEA_WITH_CUDA AND ARGN)
    set(hopper ${ARGN})
    list(FILTER hopper INCLUDE REGEX "(^|/)sm90_[^/]*$")
    set(others ${ARGN})
    list(FILTER others EXCLUDE REGEX "(^|/)sm90_[^/]*$")
    foreach(part IN ITEMS others hopper)
      if(NOT ${part})
        continue()
      endif()
      set(target ${name}_real_${part})
      list(TRANSFORM ${part} PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
      add_library(${target} OBJECT ${${part}})
      if("${part}" STREQUAL "hopper")
        set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES 90a-real)
      endif()
      target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
      target_link_libraries(${target} PRIVATE fovea_build fovea_cuda_build)
      target_compile_definitions(${target} PRIVATE FOVEA_WORLD=real)
      # --fmad=false: products and sums are fused where the source says so, as in the CPU's kernels.
      target_compile_options(${target} PRIVATE --expt-relaxed-constexpr --fmad=false
        $<$<BOOL:${FOVEA_CUDA_VERBOSE}>:-Xptxas=-v> $<$<BOOL:${FOVEA_WERROR}>:-Werror=all-warnings>)
      if(FOVEA_CUDA_SPIN_LIMIT)
        target_compile_definitions(${target} PRIVATE FOVEA_CUDA_SPIN_LIMIT=${FOVEA_CUDA_SPIN_LIMIT})
      endif()
      list(APPEND result $<TARGET_OBJECTS:${target}>)
    endforeach()
  endif()
  if(FOVEA_EMULATE_CUDA AND ARGN)
    set(sources "")
    foreach(source IN LISTS ARGN)
      set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/emulated/${source})
      cmake_path(REPLACE_EXTENSION wrapper LAST_ONLY cpp)
      file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
      list(APPEND sources ${wrapper})
    endforeach()
    add_library(${name}_emulated OBJECT ${sources})
    target_include_directories(${name}_emulated PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name}_emulated PRIVATE fovea_build fovea_cuda_build)
    target_compile_definitions(${name}_emulated PRIVATE FOVEA_WORLD=emulated)
    # Shared memory holds one type after another at the same place. Products and sums are fused
    # where the source says so, as in the CPU's kernels.
    target_compile_options(${name}_emulated PRIVATE
      -O2 -fno-strict-aliasing -ffp-contract=off -fno-math-errno -fno-trapping-math)
    list(APPEND result $<TARGET_OBJECTS:${name}_emulated>)
  endif()
  set(${objects} ${result} PARENT_SCOPE)
endfunction()
