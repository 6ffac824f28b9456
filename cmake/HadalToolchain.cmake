# Sets everything that changes how every file is compiled: the language level, build type, ccache, warnings,
# sanitizers and CUDA.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O2 is used and not -O3, because hot loops have explicit SIMD and elsewhere -O3 only makes the build slower.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(HADAL_CCACHE ccache)
if(HADAL_CCACHE)
  # A clone at another path finds the objects that the first clone compiled: ccache compares paths below the
  # source directory relative to the build directory (base_dir), and does not compare the build directory
  # itself (no hash_dir).
  set(launcher env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1)
  # Without this sloppiness ccache finds nothing that uses a precompiled header. DEPEND avoids preprocessing
  # files twice.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher} CCACHE_DEPEND=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${HADAL_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher} ${HADAL_CCACHE})
endif()

if(HADAL_CUDA)
  find_program(HADAL_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT HADAL_NVCC)
    message(FATAL_ERROR "HADAL_CUDA=ON needs nvcc: none in PATH, $CUDA_HOME/bin or /usr/local/cuda/bin. "
                        "Install the CUDA toolkit, or build the cpu-release preset.")
  endif()
  set(CMAKE_CUDA_COMPILER ${HADAL_NVCC})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  # "90a" has instructions (wgmma, setmaxnreg) that plain 90 lacks. There is no PTX, so nothing is compiled at start-up.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # nvcc has it, CMake 3.25 does not know
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_90a,code=sm_90a;--expt-relaxed-constexpr;-DFMT_USE_CONSTEXPR=1>")
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
  # src/kernels/cuda/common/sanitize.cuh says what these builds change. When it is off, nothing is defined.
  if(HADAL_SANITIZE_KERNELS STREQUAL "DELAYS")
    add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-DHADAL_DELAY_KERNELS>)
  elseif(HADAL_SANITIZE_KERNELS STREQUAL "ON")
    add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-DHADAL_SANITIZE_KERNELS;-lineinfo>")
  elseif(HADAL_SANITIZE_KERNELS)
    message(FATAL_ERROR "HADAL_SANITIZE_KERNELS is '${HADAL_SANITIZE_KERNELS}'; allowed: OFF, ON, DELAYS")
  endif()
endif()

# Warnings are set for our own targets only (see HadalTargets.cmake), never for the code that we include.
set(HADAL_WARNINGS "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wno-missing-field-initializers>"
                   "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(HADAL_WERROR)
  list(APPEND HADAL_WARNINGS "$<$<COMPILE_LANGUAGE:CXX>:-Werror>"
                             "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
endif()

# Whether a*b+c rounds once or twice must be what the source says. Reproducibility is a contract, so
# contraction is explicit.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

if(HADAL_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${HADAL_SANITIZE};-fno-omit-frame-pointer;-g1>")
  add_link_options(-fsanitize=${HADAL_SANITIZE})
  if(HADAL_SANITIZE MATCHES "undefined")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # These three sanitizers check every access and double the time of compilation. AddressSanitizer also
      # ends the program at a null pointer and at a wrong size, and the fuzzers, which clang compiles, check
      # alignment.
      add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,alignment,object-size>)
    endif()
  endif()
  if(HADAL_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The thread sanitizer does not follow Asio's fences, but it follows its locks. One warning for each fence
    # would hide all other warnings.
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()
