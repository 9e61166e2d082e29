# cuDNN as one more candidate (FOVEA_WITH_CUDNN). Needed to build: the headers of cudnn-frontend and
# of cuDNN 9. FOVEA_CUDNN_REASON says why the backend is not part of a build.

set(FOVEA_CUDNN_FRONTEND_DIR "" CACHE PATH "Where cudnn-frontend is: the folder of cudnn_frontend.h, or the one above `include`")
set(FOVEA_CUDNN_REASON "this build has no CUDA backend for it (FOVEA_WITH_CUDA=OFF)")
set(FOVEA_CUDNN_DEFAULT OFF)

if(FOVEA_WITH_CUDA)
  # The Python package puts its headers beside the modules, as do NVIDIA's packages of cuDNN.
  set(sites "")
  find_program(FOVEA_PYTHON NAMES python3 python)
  if(FOVEA_PYTHON)
    execute_process(
      COMMAND ${FOVEA_PYTHON} -c
        "import site, sysconfig; print(';'.join({sysconfig.get_path('purelib'), *site.getsitepackages(), site.getusersitepackages()}))"
      OUTPUT_VARIABLE sites OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(cudnn_sites ${sites})
  list(TRANSFORM cudnn_sites APPEND /nvidia/cudnn)
  find_path(FOVEA_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
    HINTS ${FOVEA_CUDNN_FRONTEND_DIR} ${sites} PATH_SUFFIXES include)
  find_path(FOVEA_CUDNN_INCLUDE cudnn_graph.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} ${cudnn_sites} PATH_SUFFIXES include)
  mark_as_advanced(FOVEA_PYTHON FOVEA_CUDNN_FRONTEND_INCLUDE FOVEA_CUDNN_INCLUDE)

  # file, what it defines
  function(fovea_header_number file name result)
    set(number 0)
    if(EXISTS ${file})
      file(STRINGS ${file} line REGEX "^#define ${name} +[0-9]+")
      string(REGEX REPLACE ".* ([0-9]+).*" "\\1" number "${line}")
    endif()
    set(${result} ${number} PARENT_SCOPE)
  endfunction()
  fovea_header_number(${FOVEA_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h
    CUDNN_FRONTEND_MAJOR_VERSION frontend_major)
  fovea_header_number(${FOVEA_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h
    CUDNN_FRONTEND_MINOR_VERSION frontend_minor)
  fovea_header_number(${FOVEA_CUDNN_INCLUDE}/cudnn_version.h CUDNN_MAJOR cudnn_major)

  if(NOT FOVEA_CUDNN_FRONTEND_INCLUDE)
    set(FOVEA_CUDNN_REASON "the headers of cudnn-frontend were not found (FOVEA_CUDNN_FRONTEND_DIR)")
  elseif("${frontend_major}.${frontend_minor}" VERSION_LESS 1.32)
    set(FOVEA_CUDNN_REASON
      "cudnn-frontend ${frontend_major}.${frontend_minor} was found; 1.32 or newer is needed")
  elseif(NOT FOVEA_CUDNN_INCLUDE)
    set(FOVEA_CUDNN_REASON "the headers of cuDNN were not found")
  elseif(NOT cudnn_major EQUAL 9)
    set(FOVEA_CUDNN_REASON "the headers of cuDNN ${cudnn_major} were found; 9 is needed")
  else()
    set(FOVEA_CUDNN_REASON "this build leaves it out (FOVEA_WITH_CUDNN=OFF)")
    set(FOVEA_CUDNN_DEFAULT ON)
  endif()
endif()

option(FOVEA_WITH_CUDNN "cuDNN as a candidate of the CUDA backend; needs cudnn-frontend" ${FOVEA_CUDNN_DEFAULT})
if(FOVEA_WITH_CUDNN AND NOT FOVEA_CUDNN_DEFAULT)
  message(FATAL_ERROR "FOVEA_WITH_CUDNN: ${FOVEA_CUDNN_REASON}.")
endif()
