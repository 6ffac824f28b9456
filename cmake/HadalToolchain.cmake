# Language level, build type, ccache, warnings and sanitizers: everything that changes how every file is compiled.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O2, not -O3: hot loops are written with explicit SIMD, and -O3 costs build time for nothing elsewhere.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(HADAL_CCACHE ccache)
if(HADAL_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HADAL_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${HADAL_CCACHE})
endif()

# Warnings belong to our own targets (see HadalTargets.cmake), never to what we include.
set(HADAL_WARNINGS -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(HADAL_WERROR)
  list(APPEND HADAL_WARNINGS -Werror)
endif()

# a*b+c must round once or twice as the source says: reproducibility is a contract, so contraction is explicit.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

if(HADAL_SANITIZE)
  add_compile_options(-fsanitize=${HADAL_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${HADAL_SANITIZE})
  if(HADAL_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
