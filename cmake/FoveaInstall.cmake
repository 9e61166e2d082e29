# Installation: library, headers, licence, CMake package and pkg-config file.
include(CMakePackageConfigHelpers)

set(FOVEA_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Fovea)

install(TARGETS fovea EXPORT FoveaTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fovea
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# A static library leaves its own needs to the program.
set(FOVEA_NEEDS_CUDART OFF)
if(FOVEA_WITH_CUDA AND NOT BUILD_SHARED_LIBS)
  set(FOVEA_NEEDS_CUDART ON)
endif()

# find_package(Fovea)
install(EXPORT FoveaTargets NAMESPACE fovea:: DESTINATION ${FOVEA_CMAKE_DIR})
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/FoveaConfig.cmake.in ${PROJECT_BINARY_DIR}/FoveaConfig.cmake
  INSTALL_DESTINATION ${FOVEA_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/FoveaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/FoveaConfig.cmake ${PROJECT_BINARY_DIR}/FoveaConfigVersion.cmake
  DESTINATION ${FOVEA_CMAKE_DIR})

# pkg-config: paths relative to the file, so that the prefix can be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
           OUTPUT_VARIABLE FOVEA_LIBDIR)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
           OUTPUT_VARIABLE FOVEA_INCLUDEDIR)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
           BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig OUTPUT_VARIABLE FOVEA_PREFIX)
# The program may be written in C.
set(needs "-lstdc++ -lm -pthread")
foreach(library IN LISTS CMAKE_DL_LIBS)
  string(APPEND needs " -l${library}")
endforeach()
if(FOVEA_NEEDS_CUDART)
  string(APPEND needs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()
if(BUILD_SHARED_LIBS)
  set(FOVEA_PC_LIBS "-lfovea")
  set(FOVEA_PC_PRIVATE_LIBS "${needs}")
else()
  set(FOVEA_PC_LIBS "-lfovea ${needs}")
  set(FOVEA_PC_PRIVATE_LIBS "")
endif()
configure_file(cmake/fovea.pc.in ${PROJECT_BINARY_DIR}/fovea.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fovea.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
