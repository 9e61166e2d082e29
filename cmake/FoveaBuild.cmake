# Compiler settings shared by everything that is built here.

# Warnings.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow>"
                    "$<$<COMPILE_LANGUAGE:CXX>:-Wconversion>")
# These depend on what the optimiser inlines; in GCC 12 they are wrong about std::sort and about the
# JSON library. The sanitizers find what they would.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(-Wno-array-bounds -Wno-maybe-uninitialized -Wno-stringop-overflow)
endif()
if(FOVEA_WERROR)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Werror>")
endif()

# Sanitizers: every finding ends the program.
if(FOVEA_SANITIZE)
  set(options -fsanitize=${FOVEA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${options}>")
  add_link_options(-fsanitize=${FOVEA_SANITIZE})
endif()

# ccache where it is found.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(FOVEA_CCACHE ccache)
  if(FOVEA_CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER ${FOVEA_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${FOVEA_CCACHE})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${FOVEA_CCACHE})
  endif()
endif()
